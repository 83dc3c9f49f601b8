"""The filter's report: how many runs each stage dropped and passed on.

    stage           in   dropped            out
    contamination  100   exact 2, n-gram 1   97
    complexity      97   ...

Every reason belongs to one stage, so the counts of reasons determine what each stage took and passed on.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from coa.distill import contamination, duplicates, stages
from coa.json_object import Json, JsonView
from coa.storage.files import write_atomically
from coa.teams.transcript import Ending

CORRECTION = "correction"
MOST_DETAILS = 5
MOST_EXAMPLES = 20
"""Maximum details of a reason that drops.md shows."""
STAGES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "contamination": contamination.REASONS,
        "complexity": (stages.TOO_SIMPLE,),
        "quality": (
            Ending.MALFORMED.value,
            Ending.OUT_OF_STEPS.value,
            stages.WRONG,
            stages.UNGRADED,
            stages.DISOBEYED,
            stages.REPEATED,
            stages.VIOLATION,
        ),
        "reflection": (stages.NO_REFLECTION,),
        "duplicates": (duplicates.EXACT, duplicates.NEAR, duplicates.SAME_CHAIN, duplicates.ENOUGH),
        CORRECTION: (),
    }
)
"""The stages in order, with their reasons to drop a run. The stage correction drops no runs; it adds copies."""
_REASONS = frozenset(reason for reasons in STAGES.values() for reason in reasons)


@dataclass(frozen=True, slots=True)
class Dropped:
    """A run that was dropped: `Dropped("t1", 0, "transition violation", "`answer` after `web_search` under web")`."""

    task_id: str
    attempt: int
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCounts:
    """Runs of one stage."""

    taken: int
    dropped: Mapping[str, int]
    """Counts by reason, without zeros."""
    passed: int
    """Runs passed on, including copies that the stage added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterReport:
    """Counts of runs; the reports of chunks can be added. Raises ValueError for inconsistent counts."""

    transcripts: int = 0
    kept: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    """Counts by reason."""
    further: int = 0
    """Lines of kept runs that are demonstrations too, beside the first."""
    upsampled: int = 0
    """Copies beyond the first."""

    def __post_init__(self) -> None:
        if unknown := set(self.dropped) - _REASONS:
            raise ValueError(f"no stage drops a run for {min(unknown)!r}")
        if self.transcripts != self.kept + sum(self.dropped.values()):
            raise ValueError(f"{self.transcripts} transcripts, but {self.kept} kept and {dict(self.dropped)} dropped")

    def __add__(self, other: "FilterReport") -> "FilterReport":
        return FilterReport(
            transcripts=self.transcripts + other.transcripts,
            kept=self.kept + other.kept,
            dropped=dict(Counter(self.dropped) + Counter(other.dropped)),
            further=self.further + other.further,
            upsampled=self.upsampled + other.upsampled,
        )

    @property
    def stages(self) -> dict[str, StageCounts]:
        """The counts of each stage, in order."""
        found: dict[str, StageCounts] = {}
        taken = self.transcripts
        for stage, reasons in STAGES.items():
            dropped = {reason: n for reason in reasons if (n := self.dropped.get(reason, 0))}
            added = self.further + self.upsampled if stage == CORRECTION else 0
            passed = taken - sum(dropped.values()) + added
            found[stage] = StageCounts(taken=taken, dropped=dropped, passed=passed)
            taken = passed
        return found

    def to_json(self) -> Json:
        return {
            "transcripts": self.transcripts,
            "kept": self.kept,
            "dropped": dict(self.dropped),
            "further": self.further,
            "upsampled": self.upsampled,
            "stages": {
                stage: {"in": counts.taken, "dropped": dict(counts.dropped), "out": counts.passed}
                for stage, counts in self.stages.items()
            },
        }

    @classmethod
    def from_json(cls, record: JsonView) -> "FilterReport":
        """The inverse of `to_json`; ignores other keys. Raises KeyError if a count is missing."""
        return cls(**{name: record[name] for name in ("transcripts", "kept", "dropped", "further", "upsampled")})


HEADER = ("stage", "in", "dropped", "out")


def rows(report: FilterReport) -> list[tuple[str, str, str, str]]:
    """The cells of a table with a row for each stage, under HEADER."""
    added = [f"{n} {what} added" for n, what in ((report.further, "further lines"), (report.upsampled, "copies")) if n]
    more = {CORRECTION: ["none", *added]}
    return [
        (stage, str(one.taken), ", ".join(more.get(stage) or _dropped(one) or ["none"]), str(one.passed))
        for stage, one in report.stages.items()
    ]


def _dropped(counts: StageCounts) -> list[str]:
    return [f"{reason}: {n}" for reason, n in counts.dropped.items()]


def markdown(report: FilterReport, dropped: Iterable[Dropped] = ()) -> str:
    """A line with the totals, the rows as a table, and the first details of the dropped runs by reason."""
    lines = [
        f"{report.kept} of {report.transcripts} transcripts kept, {report.kept + report.further + report.upsampled} "
        f"demonstrations with further lines and copies.",
        "",
        f"| {' | '.join(HEADER)} |",
        "|---|---:|---|---:|",
        *(f"| {' | '.join(row)} |" for row in rows(report)),
    ]
    by_reason: dict[str, list[str]] = {}
    for one in dropped:
        shown = by_reason.setdefault(one.reason, [])
        if one.detail and len(shown) < MOST_EXAMPLES:
            shown.append(f"- {one.task_id}, attempt {one.attempt}: {one.detail}")
    for reason, shown in by_reason.items():
        lines += ["", f"{reason.capitalize()}:", "", *shown] if shown else []
    return "\n".join(lines) + "\n"


def details(dropped: Iterable[Dropped]) -> list[str]:
    """A line for each detail of the dropped runs, the most frequent first, with an example."""
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], Dropped] = {}
    for one in dropped:
        if one.detail:
            counts[one.reason, one.detail] += 1
            first.setdefault((one.reason, one.detail), one)
    return [
        f"{reason}: {detail}: {n} runs, such as attempt {first[reason, detail].attempt} at task "
        f"{first[reason, detail].task_id}"
        for (reason, detail), n in counts.most_common(MOST_DETAILS)
    ]


def write_drops(folder: Path, report: FilterReport, dropped: Iterable[Dropped] = ()) -> None:
    """Writes drops.json, which `FilterReport.from_json` reads, and drops.md."""
    write_atomically(folder / "drops.json", json.dumps(report.to_json(), indent=1) + "\n")
    write_atomically(folder / "drops.md", markdown(report, dropped))
