"""Where the time of the stage's engines and learners goes: since the last step, and in all."""

import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from actors.rollout.clocks import BusyReport, merged
from coa.spent import EngineState, LearnerState, Spent, added, filled, shares, since


class LoopTimes:
    """Engines and learners count for themselves; this takes what they have counted since the stage began."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._last = 0.0
        self._engines_first: Sequence[BusyReport] = ()
        self._engines_last: Sequence[BusyReport] = ()
        self._gone: list[float] = []
        """For how long each engine has not served, as far as is known."""
        self._learner_last: Spent = {}
        self._learner: dict[str, float] = {}
        self._again = False
        """Whether the learners have started again since the last step."""

    def begin(self, engines: Sequence[BusyReport], learner: Spent) -> None:
        """The loops begin, for the first time or again. learner: of the event that says so."""
        if self._began is None:
            self._began = self._last = time.monotonic()
            self._engines_first = self._engines_last = engines
        else:
            self._again = True
        self._learner_last = learner

    def step(self, engines: Sequence[BusyReport], learner: Spent) -> dict[str, float]:
        """Metrics of a step: shares of the time since the one before, over all engines.

        What the driver hears comes late, now more and now less: that is no time in which nobody was there."""
        now = time.monotonic()
        ours = [
            {**since(before.spent, report.spent), EngineState.GONE: gone}
            for (before, report), gone in zip(
                _pairs(self._engines_last, engines), self._more_gone(engines), strict=True
            )
        ]
        learnt = self._learnt(learner)
        if self._again:
            learnt = filled(learnt, now - self._last, LearnerState.GONE)
        self._last, self._engines_last, self._again = now, engines, False
        parts = (("engine", added(ours)), ("learner", learnt))
        return {f"{who}/{state}": share for who, spent in parts for state, share in shares(spent).items()}

    def finish(self, learner: Spent) -> None:
        """The learners are done."""
        self._learnt(learner)

    def whole(self, engines: Sequence[BusyReport]) -> dict[str, Any]:
        """The stage's result: seconds by state of each engine and of the learners, and how engines sampled. Each sums
        to the wall time, an engine's to the part of it in which it had a place, but for what two processes' clocks
        differ."""
        wall_s = time.monotonic() - (self._began or 0.0) if self._began is not None else 0.0
        ours = _between(self._engines_first, engines)
        learner = filled(self._learner, wall_s, LearnerState.GONE)
        return {
            "time": {
                "wall": round(wall_s, 3),
                "engines": [_rounded(one) for one in ours],
                "learner": _rounded(learner),
            },
            "decoding": self._decoding(merged(engines)),
        }

    def _learnt(self, learner: Spent) -> dict[str, float]:
        spent = since(self._learner_last, learner)
        self._learner_last = learner
        self._learner = added([self._learner, spent])
        return spent

    def _more_gone(self, engines: Sequence[BusyReport]) -> list[float]:
        """Seconds that each engine has not served, beside those that were counted in the steps before."""
        in_all = [spent.get(EngineState.GONE, 0.0) for spent in _between(self._engines_first, engines)]
        before = [*self._gone, *[0.0] * (len(in_all) - len(self._gone))]
        self._gone = [max(pair) for pair in zip(before, in_all, strict=True)]
        return [now - then for now, then in zip(self._gone, before, strict=True)]

    def _decoding(self, now: BusyReport) -> list[tuple[int, float, int]]:
        before = {requests: (seconds, tokens) for requests, seconds, tokens in merged(self._engines_first).decoding}
        found = []
        for requests, seconds, tokens in now.decoding:
            seconds_before, tokens_before = before.get(requests, (0.0, 0))
            if tokens > tokens_before:
                found.append((requests, round(seconds - seconds_before, 3), tokens - tokens_before))
        return found


def _between(before: Sequence[BusyReport], now: Sequence[BusyReport]) -> list[dict[str, float]]:
    """What each engine did between two moments, for as long as its place was there."""
    return [
        filled(since(first.spent, last.spent), last.place_s - first.place_s, EngineState.GONE)
        for first, last in _pairs(before, now)
    ]


def _pairs(before: Sequence[BusyReport], now: Sequence[BusyReport]) -> list[tuple[BusyReport, BusyReport]]:
    return list(zip_longest(before, now, fillvalue=BusyReport(())))


def _rounded(spent: Spent) -> dict[str, float]:
    return {str(state): round(seconds, 3) for state, seconds in spent.items()}
