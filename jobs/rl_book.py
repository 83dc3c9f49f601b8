"""What the reinforcement stage tells of itself: a record of metrics a step, and its result."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import numpy as np

from coa.rollout import EpisodeRecord, GroupRecord
from coa.spans import Times, overlap, total

STAGE = "rl"


class Book:
    """Counts and spans of the stage, from the start of this process on."""

    def __init__(self) -> None:
        self.dropped: Counter[str] = Counter()
        self.played: list[GroupRecord] = []
        self.divergences: list[float] = []
        """Mean reverse KL of each group since the last step, where a teacher scores them."""
        self.syncs: list[Any] = []
        self.refills = 0
        self.deadline_waits = 0
        self._began = 0.0
        self._last = 0.0
        self._spans: Times = []
        self._trajectories = 0
        self._samples = 0
        self._staleness: list[tuple[float, int]] = []
        self._oldest = 0
        self._diff = 0.0

    def begin(self) -> None:
        self._began = self._began or time.time()
        self._last = time.time()

    def step(self, event: Any) -> list[GroupRecord]:
        """The groups that ended since the last step."""
        groups, self.played = self.played, []
        report = event.report
        self._spans.append((event.began, event.ended))
        self._trajectories += sum(len(group.episodes) for group in groups)
        self._samples += report.samples
        self._staleness.append((report.staleness_mean, report.tokens))
        self._oldest = max(self._oldest, report.staleness_max)
        self._diff = float(np.max([self._diff, report.logprob_max_diff]))
        return groups

    def line(self, event: Any, groups: list[GroupRecord]) -> dict[str, Any]:
        """One record of metrics; what is a mean of nothing is left out."""
        now = time.time()
        episodes = [episode for group in groups for episode in group.episodes]
        elapsed, self._last = now - self._last, now
        divergences, self.divergences = self.divergences, []
        scored = {"reverse_kl": fmean(divergences)} if divergences else {}
        return {
            **asdict(event.report),
            **scored,
            **(means(episodes) if episodes else {}),
            "groups": len(groups),
            "trajectories_s": len(episodes) / max(elapsed, 1e-9),
            "sync_logprob_max_diff": self.syncs[-1].logprob_diff if self.syncs else 0.0,
            "sync_pause_s": self.syncs[-1].pause_s if self.syncs else 0.0,
            "seconds": event.ended - event.began,
            "waited": event.waited,
        }

    def summary(self, engines: list[Times]) -> dict[str, Any]:
        ended = time.time()
        whole = [(self._began, ended)]
        generating = [span for spans in engines for span in spans]
        learning = total(self._spans)
        tokens = sum(n for _, n in self._staleness)
        return {
            "seconds": round(ended - self._began, 1),
            "samples": self._samples,
            "trajectories": self._trajectories,
            "dropped": dict(self.dropped),
            "refills": self.refills,
            "deadline_waits": self.deadline_waits,
            "syncs": len(self.syncs),
            "logprob_max_diff": float(np.max([sync.logprob_diff for sync in self.syncs], initial=0.0)),
            "train_logprob_max_diff": self._diff,
            "sync_pause_mean_s": sum(s.pause_s for s in self.syncs) / max(len(self.syncs), 1),
            "overlap": overlap(self._spans, generating) / learning if learning else 0.0,
            "busy": {
                "engine": sum(overlap(spans, whole) for spans in engines) / (len(engines) * (ended - self._began)),
                "learner": learning / (ended - self._began),
            },
            "staleness_max": self._oldest,
            "staleness_mean": sum(mean * n for mean, n in self._staleness) / max(tokens, 1),
        }


def means(episodes: Sequence[EpisodeRecord]) -> dict[str, float]:
    return {
        "reward": fmean(e.reward for e in episodes),
        "correct": fmean(e.correct for e in episodes),
        "well_formed": fmean(e.well_formed for e in episodes),
        "tool_calls": fmean(len(e.tool_calls) for e in episodes),
        "policy_tokens": fmean(e.policy_tokens for e in episodes),
    }
