"""Metrics of the RL stage: a record per step, the part that the terminal shows, and the stage's result."""

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from math import isfinite
from statistics import fmean

import numpy as np

from actors.learner.buffer import Stepped
from actors.learner.step_report import StepReport
from actors.messages import CacheStats, SyncReport
from actors.rollout.config import KvOnUpdate
from actors.weights.transport import Published
from cluster.pool import Occupancy
from coa.agent.episode import Grammar
from coa.agent.records import EpisodeRecord, GroupRecord
from coa.errors import EpisodeFailed
from coa.json_object import Json, JsonView
from coa.learning.families import Families
from coa.learning.faults import of_sync
from coa.learning.skipping import Skipping
from coa.learning.spells import failing, uninformative
from coa.reporting.spans import Times, overlap, steady, total
from coa.types import Status
from jobs.recipe.schema import Recipe
from jobs.stages.reinforcement.waits import ADVICE

_log = logging.getLogger(__name__)
STAGE = "rl"
NO_VARIANCE = "no variance"
"""Reason for dropping a zero-variance group: its episodes are all equally good, so nothing can be learnt from it."""
QUANTILES = (50, 90, 99)
SHOWN = {"reward": "reward", "entropy": "entropy", "kl_rollout": "kl", "staleness_mean": "stale", "tokens_s": "tok/s"}
"""The metrics that the terminal shows, most important first, with their labels."""


class RlStats:
    """Counters and time spans of the stage since this process started."""

    def __init__(self, clock: Callable[[], float] = steady) -> None:
        self._clock = clock
        self.dropped: Counter[str] = Counter()
        """Number of dropped groups by reason."""
        self.given_up = 0
        """Number of tasks that are not issued again, since their groups failed repeatedly."""
        self.retried = 0
        """Number of times that a task is issued again after its group failed."""
        self.played: list[GroupRecord] = []
        """Groups that ended since the last step."""
        self.families, self.failing, self.uninformative = Families(), failing(), uninformative()
        self.skipping = Skipping()
        self.faults: list[str] = []
        """Faults that `coa.learning.faults` found since the last record."""
        self._faulty: set[int] = set()
        """Versions whose step has a fault in its record."""
        self._version = 0
        """Version of the last record."""
        self.divergences: list[float] = []
        """Mean reverse KL of each group since the last step, if a teacher scores them."""
        self.syncs: list[SyncReport] = []
        """Reports of all engines and versions."""
        self._last_sync: Sequence[SyncReport] = ()
        """Reports of the engines that loaded the newest version."""
        self.sync_s: list[float] = []
        """For each version, the seconds from new weights until all engines ran them."""
        self.committed: dict[str, float] = {}
        """Measurements of writing the last checkpoint, if it was committed since the last record."""
        self.refills = 0
        self.deadline_waits = 0
        self._began = 0.0
        self._last = 0.0
        self._counted: Counter[str] = Counter()
        self._spans: Times = []
        self._trajectories = 0
        self._samples = 0
        self._staleness: list[tuple[float, int]] = []
        self._oldest = 0
        self._diff = 0.0
        self._cache = CacheStats()

    def begin(self) -> None:
        self._began = self._began or self._clock()
        self._last = self._clock()

    def suspect(self, faults: Sequence[str]) -> None:
        for fault in faults:
            _log.warning("%s", fault)
        self.faults += faults

    def sync(self, reports: Sequence[SyncReport]) -> None:
        """Engines have taken new weights."""
        self.syncs += reports
        self._last_sync = reports
        self.suspect(of_sync(reports))

    def play(self, group: int, alike: str) -> None:
        """A group was played; `alike`: why nothing can be learnt from it, "" if something can."""
        self.families.play(group)
        self.failing.add("")
        self.uninformative.add(alike and f"{alike}: {ADVICE[alike]}")

    def fail(self, failure: EpisodeFailed, *, again: bool) -> None:
        """An episode failed for good, and its group with it; `again`: its task is issued again."""
        self.dropped[failure.where] += 1
        self.failing.add(str(failure))
        self.retried += again
        self.given_up += not again

    def news(self, version: int) -> list[str]:
        """Sentences for the user since the last call."""
        return [*self.families.news(version), *self.failing.news(version), *self.uninformative.news(version)]

    def step(self, event: Stepped) -> list[GroupRecord]:
        """Counts a step; returns the groups that ended since the last one."""
        groups, self.played = self.played, []
        report = event.report
        self._spans.append((event.began, event.ended))
        self._trajectories += sum(len(group.episodes) for group in groups)
        self._samples += report.samples
        self._staleness.append((report.staleness_mean, report.tokens))
        self._oldest = max(self._oldest, report.staleness_max)
        if report.logprob_max_diff is not None:
            self._diff = largest([self._diff, report.logprob_max_diff])
        return groups

    def record(self, event: Stepped, groups: Sequence[GroupRecord]) -> Json:
        """One record of metrics; means without values are left out. docs/run_directory.md says what each is."""
        now = self._clock()
        elapsed, self._last = max(now - self._last, 1e-9), now
        divergences, self.divergences = self.divergences, []
        faults, self.faults, self._version = self.faults, [], event.version
        self._faulty |= {event.version} if faults else set()
        committed, self.committed = self.committed, {}
        counts = self._since_last_record()
        episodes = [episode for group in groups for episode in group.episodes]
        return {
            **learner_metrics(event.report),
            **({"reverse_kl": fmean(divergences)} if divergences else {}),
            **episode_metrics(groups),
            **counts,
            **self.families.metrics(),
            "failed_fraction": self.failing.share,
            **({"faults": "; ".join(faults)} if faults else {}),
            "groups": len(groups),
            **({"rejected_fraction": counts.get(drop(NO_VARIANCE), 0) / len(groups)} if groups else {}),
            "trajectories_s": len(episodes) / elapsed,
            "tokens_s": sum(episode.policy_tokens for episode in episodes) / elapsed,
            **({"weights": event.weights.manifest.fingerprint} if isinstance(event.weights, Published) else {}),
            **of_engines(self._last_sync),
            **committed,
            "seconds": event.ended - event.began,
            "waited": event.waited,
        }

    def prefill(self, cache: CacheStats) -> dict[str, float]:
        """Returns the figures of the engines' KV caches since the last call."""
        since, self._cache = cache - self._cache, cache
        return prefill_of(since)

    def _since_last_record(self) -> dict[str, int]:
        """Counts since the last record: groups dropped by reason, tasks retried, and sync alarms."""
        dropped = {drop(reason): n for reason, n in self.dropped.items()}
        counts = Counter(dropped | {"retried": self.retried, "sync_alarms": self._alarms()})
        since, self._counted = counts - self._counted, counts
        return {"retried": 0, "sync_alarms": 0, **since}

    def _alarms(self) -> int:
        """Number of weight syncs after which the log-probs of engine and learner differed by more than they should, or
        the engine's had not changed."""
        return sum(sync.alarm for sync in self.syncs)

    def summary(self, engines: list[Times]) -> Json:
        ended = self._clock()
        whole = [(self._began, ended)]
        generating = [span for spans in engines for span in spans]
        learning = total(self._spans)
        tokens = sum(n for _, n in self._staleness)
        return {
            "seconds": round(ended - self._began, 1),
            "batches": len(self._spans),
            "samples": self._samples,
            "trajectories": self._trajectories,
            "dropped": dict(self.dropped),
            "retried": self.retried,
            "given_up": self.given_up,
            # What is found after the last step is that one's: nobody records it any more.
            "faults": len(self._faulty | ({self._version} if self.faults else set())),
            "skipped": self.skipping.total,
            "families_vanished": [asdict(one) for one in self.families.history],
            "groups_failing": [asdict(one) for one in self.failing.history],
            "groups_uninformative": [asdict(one) for one in self.uninformative.history],
            "refills": self.refills,
            "deadline_waits": self.deadline_waits,
            "syncs": len(self.syncs),
            "sync_alarms": self._alarms(),
            "logprob_max_diff": largest([sync.logprob_diff for sync in self.syncs]),
            "train_logprob_max_diff": self._diff,
            "sync_pause_mean_s": sum(s.pause_s for s in self.syncs) / max(len(self.syncs), 1),
            "sync_mean_s": fmean(self.sync_s or [0.0]),
            "overlap": overlap(self._spans, generating) / learning if learning else 0.0,
            "busy": {
                "engine": fmean([overlap(spans, whole) for spans in engines] or [0.0]) / (ended - self._began),
                "learner": learning / (ended - self._began),
            },
            "staleness_max": self._oldest,
            "staleness_mean": sum(mean * n for mean, n in self._staleness) / max(tokens, 1),
        }


def prefill_of(cache: CacheStats) -> dict[str, float]:
    """Returns the figures of KV caches; without shares if nothing was computed."""
    share = {"recomputed_fraction": cache.recomputed / cache.prefill} if cache.prefill else {}
    return {"preemptions": cache.preemptions, **share}


def of_engines(reports: Sequence[SyncReport]) -> dict[str, float]:
    """Maxima over the engines that loaded the newest version; empty if no engine has."""
    if not reports:
        return {}
    return {
        "sync_logprob_max_diff": float(np.max([report.logprob_diff for report in reports])),
        "sync_logprob_mean_diff": float(np.max([report.logprob_mean_diff for report in reports])),
        "sync_pause_s": max(report.pause_s for report in reports),
    }


def largest(differences: Sequence[float]) -> float:
    """The largest difference that is finite; 0 without any. One that is not finite is a fault of its step."""
    return max(filter(isfinite, differences), default=0.0)


def drop(reason: str) -> str:
    """Name of the metric that counts groups dropped for a reason."""
    return f"dropped/{reason.replace(' ', '_')}"


def learner_metrics(report: StepReport) -> Json:
    """The learners' report as metrics, and the algorithm's own metrics under the names that the algorithm gives. What
    could not be measured is left out."""
    values = asdict(report)
    algorithm = values.pop("algorithm", {})
    values.pop("not_finite", None)  # `faults` tells it
    return {**algorithm, **{name: value for name, value in values.items() if value is not None}}


def episode_metrics(groups: Sequence[GroupRecord]) -> dict[str, float]:
    """Means over the episodes of groups, their lengths by quantile, and the reward of each family."""
    if not (episodes := [episode for group in groups for episode in group.episodes]):
        return {}
    rewards: dict[str, list[float]] = defaultdict(list)
    for group in groups:
        rewards[group.task.family] += group.rewards
    unused = sum((Counter(episode.unused) for episode in episodes), Counter[str]())
    return {
        **means(episodes),
        **lengths(episodes),
        **{f"reward/{family}": fmean(values) for family, values in sorted(rewards.items()) if values},
        **{f"unused/{reason}": count for reason, count in sorted(unused.items())},
    }


def means(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    return {
        "reward": fmean(e.reward for e in episodes),
        "correct": fmean(e.correct for e in episodes),
        "well_formed": fmean(e.well_formed for e in episodes),
        "truncated_fraction": fmean(e.status is Status.TRUNCATED for e in episodes),
        "tool_calls": fmean(len(e.tool_calls) for e in episodes),
        "policy_tokens": fmean(e.policy_tokens for e in episodes),
    }


def lengths(episodes: Sequence[EpisodeRecord]) -> dict[str, int]:
    """Quantiles of the episodes' lengths in tokens."""
    tokens = np.percentile([e.tokens for e in episodes], QUANTILES, method="inverted_cdf")
    return {f"length_p{percent}": int(value) for percent, value in zip(QUANTILES, tokens, strict=True)}


def engines_in(occupancy: Occupancy) -> dict[str, int]:
    """A pool's number of wanted engines, of serving ones, and of joining ones."""
    serving, joining = occupancy.serving, occupancy.joining
    return {"engines_wished": serving + joining, "engines_serving": serving, "engines_joining": joining}


def console_fields(record: JsonView) -> Json:
    """Returns the fields of a record that the terminal shows."""
    fields = {label: record[name] for name, label in SHOWN.items() if name in record}
    return fields | ({"kl": f"{fields['kl']:.1e}"} if "kl" in fields else {})


def tolerance_of(config: Recipe) -> float | None:
    """Maximum mean difference of log-probs between engine and learner; None if the engine samples from other
    distributions than the learner's, because of an enforced grammar or a KV cache of older weights."""
    differ = config.agent.grammar is Grammar.enforce or config.engine.kv_on_update is KvOnUpdate.keep
    return None if differ else config.engine.mean_tolerance
