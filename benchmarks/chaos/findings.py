"""Results of a chaos run: its journal, from which it is resumed, and the table that is made of it. Pure except for the
journal's file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.chaos.course import Recovered
from benchmarks.chaos.plan import Kind, Strike
from coa.storage.jsonl import append_line, read_lines

WITHIN = 0.05
"""Maximum difference from the undisturbed run's held-out pass@1."""
HEADER = ("struck", "times", "recovered", "median s", "worst s", "processes back s", "driver restarts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A strike from which the run has recovered."""

    number: int
    kind: str
    busy: bool
    seconds: float
    whole_s: float
    stepped: bool
    """Whether `seconds` is the time to a step, and not to the end of the stage."""
    restarts: int
    """Number of times that the driver was started again meanwhile."""
    alarms: int
    """Sync alarms since the previous strike: weight syncs after which the log-probs of engine and learner differed."""
    staleness: int
    round: int


class Journal:
    """`chaos.jsonl`: a line for each recovery and each finished round."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = read_lines(path)
        self.hits = [Hit(**line["hit"]) for line in lines if "hit" in line]
        self.rounds: dict[int, dict[str, Any]] = {line["round"]: line["verdict"] for line in lines if "verdict" in line}
        """Verdicts by the round's number; 0 is the undisturbed round."""
        self.seconds = sum(line["seconds"] for line in lines if "seconds" in line)
        """Seconds that the rounds with strikes have taken so far, over all commands."""

    def recovered(self, found: Recovered, *, restarts: int, alarms: int, staleness: int, round_: int) -> Hit:
        hit = Hit(
            number=found.strike.number,
            kind=found.strike.kind.value,
            busy=found.victim.busy,
            seconds=round(found.seconds, 1),
            whole_s=round(found.whole_s, 1),
            stepped=found.stepped,
            restarts=restarts,
            alarms=alarms,
            staleness=staleness,
            round=round_,
        )
        self.hits.append(hit)
        append_line(self._path, {"hit": asdict(hit)})
        return hit

    def finished(self, number: int, verdict: Mapping[str, Any]) -> None:
        self.rounds[number] = dict(verdict)
        append_line(self._path, {"round": number, "verdict": verdict})

    def took(self, seconds: float) -> None:
        self.seconds += seconds
        append_line(self._path, {"seconds": round(seconds, 1)})

    def left(self, strikes: Sequence[Strike]) -> tuple[Strike, ...]:
        """The strikes from which the run has not recovered yet."""
        done = {hit.number for hit in self.hits}
        return tuple(strike for strike in strikes if strike.number not in done)


def table(hits: Sequence[Hit]) -> list[list[Any]]:
    """A row for each kind, in the order of Kind; its times are of the hits that a step was seen after."""
    rows: list[list[Any]] = []
    for kind in Kind:
        found = [hit for hit in hits if hit.kind == kind]
        if not found:
            continue
        timed = [hit for hit in found if hit.stepped]
        times = [hit.seconds for hit in timed]
        whole = f"{median(hit.whole_s for hit in timed):.0f}" if timed else "-"
        shown = [f"{median(times):.0f}", f"{max(times):.0f}"] if times else ["-", "-"]
        again = sum(hit.restarts for hit in found)
        rows.append([kind.value.replace("_", " "), len(found), len(timed), *shown, whole, again])
    return rows


def result(strikes: Sequence[Strike], journal: Journal, *, seed: int, staleness: int) -> dict[str, Any]:
    """All results as plain data. staleness: the recipe's maximum."""
    rounds = [verdict for number, verdict in sorted(journal.rounds.items()) if number]
    times: dict[str, list[float]] = {}
    for hit in journal.hits:
        if hit.stepped:
            times.setdefault(hit.kind, []).append(hit.seconds)
    made = [rate for verdict in rounds if (rate := verdict["pass_at_1"]) is not None]
    undisturbed = journal.rounds[0]["pass_at_1"] if 0 in journal.rounds else None
    found = {
        "seed": seed,
        "kills": len(journal.hits),
        "asked": len(strikes),
        "by_kind": dict(Counter(hit.kind for hit in journal.hits)),
        "idle_victims": dict(Counter(hit.kind for hit in journal.hits if not hit.busy)),
        "times": times,
        "restarts": dict(sum((Counter({hit.kind: hit.restarts}) for hit in journal.hits), Counter())),
        "rounds": len(rounds),
        "faults": [fault for verdict in rounds for fault in verdict["faults"]],
        "unfinished": sum(not verdict["finished"] for verdict in rounds),
        "alarms": sum(hit.alarms for hit in journal.hits) + sum(verdict["alarms"] for verdict in rounds),
        "failed_checks": sum(verdict["failed_checks"] for verdict in rounds),
        "unprovoked": sum(verdict["unprovoked"] for verdict in rounds),
        "staleness_max": max(
            [*(hit.staleness for hit in journal.hits), *(verdict["staleness"] for verdict in journal.rounds.values())],
            default=0,
        ),
        "pass_at_1": fmean(made) if made else None,
        "pass_at_1_undisturbed": undisturbed,
        "took_s": round(journal.seconds, 1),
    }
    return {**found, "wrong": wrong(found, staleness)}


def wrong(found: Mapping[str, Any], staleness: int) -> list[str]:
    """What is not as it should be, one line each."""
    apart, again = None, {kind: n for kind, n in found["restarts"].items() if kind != Kind.driver}
    if found["pass_at_1"] is not None and found["pass_at_1_undisturbed"] is not None:
        apart = found["pass_at_1"] - found["pass_at_1_undisturbed"]
    checks = {
        f"{found['kills']} of {found['asked']} strikes were made": found["kills"] < found["asked"],
        f"{found['unfinished']} rounds did not finish": found["unfinished"] > 0,
        f"the ledger does not balance: {found['faults'][:3]}": bool(found["faults"]),
        f"{found['alarms']} syncs left different log-probs in engine and learner": found["alarms"] > 0,
        f"{found['failed_checks']} checks of weights failed": found["failed_checks"] > 0,
        f"the driver ended {found['unprovoked']} times without a strike": found["unprovoked"] > 0,
        f"the same command had to be typed again after kills of others than the driver: {shown(again)}": bool(again),
        f"a trained token was {found['staleness_max']} versions old": found["staleness_max"] > staleness,
        "there is no pass@1 to compare": apart is None,
        f"pass@1 differs by {apart or 0:+.3f} from the undisturbed run's": apart is not None and abs(apart) > WITHIN,
    }
    return [text for text, holds in checks.items() if holds]


def shown(counts: Mapping[str, int]) -> str:
    """{"stop_rank": 2} is "stop rank 2"."""
    return ", ".join(f"{kind.replace('_', ' ')} {n}" for kind, n in counts.items())
