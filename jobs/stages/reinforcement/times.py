"""Accounts for the time of the stage's engines and learners: since the last step, and in total."""

import time
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest

from actors.rollout.clocks import BusyReport, merged
from coa.json_object import Json
from coa.planning.bottleneck import bottleneck
from coa.time_accounts import EngineState, LearnerState, Spent, added, filled, shares, since

RECENT = 10
"""Number of last steps by which the slowest part is told."""


class LoopTimes:
    """Collects the times that engines and learners measure themselves, from the beginning of the stage on."""

    def __init__(self, *, takes_turns: bool = False) -> None:
        """takes_turns: whether engines sleep while learners train."""
        self._takes_turns = takes_turns
        self._began: float | None = None
        self._last = 0.0
        self._engines_first: Sequence[BusyReport] = ()
        self._engines_last: Sequence[BusyReport] = ()
        self._gone: list[float] = []
        """Seconds for which each engine is known not to have served."""
        self._learner_last: Spent = {}
        self._learner: dict[str, float] = {}
        self._recent: deque[tuple[Spent, Spent]] = deque(maxlen=RECENT)
        self._again = False
        """Whether the learners have started again since the last step."""

    def begin(self, engines: Sequence[BusyReport], learner: Spent) -> None:
        """Called when the loops begin, for the first time or again. learner: the learners' times in the start event."""
        if self._began is None:
            self._began = self._last = time.monotonic()
            self._engines_first = self._engines_last = engines
        else:
            self._again = True
        self._learner_last = learner

    def step(self, engines: Sequence[BusyReport], learner: Spent) -> dict[str, float]:
        """Metrics of a step: shares of the time since the previous step, over all engines.

        Reports reach the driver with a varying delay, which must not count as time without an engine or learner."""
        now = time.monotonic()
        ours = [
            {**since(before.spent, report.spent), EngineState.GONE: gone}
            for (before, report), gone in zip(
                _pairs(self._engines_last, engines), self._more_gone(engines), strict=True
            )
        ]
        learnt = self._learner_times(learner)
        if self._again:
            learnt = filled(learnt, now - self._last, LearnerState.GONE)
        self._last, self._engines_last, self._again = now, engines, False
        self._recent.append((added(ours), learnt))
        parts = (("engine", added(ours)), ("learner", learnt))
        return {f"{who}/{state}": share for who, spent in parts for state, share in shares(spent).items()}

    def slowest(self) -> str:
        """The part that limited the last RECENT steps, in a word or two."""
        engines, learners = zip(*self._recent, strict=True)
        found = bottleneck(shares(added(engines)), shares(added(learners)), takes_turns=self._takes_turns)
        return found.part

    def finish(self, learner: Spent) -> None:
        """Adds the learners' last times, once they are finished."""
        self._learner_times(learner)

    def whole(self, engines: Sequence[BusyReport]) -> Json:
        """Part of the stage's result: seconds by state of each engine and of the learners, and the engines' decoding
        speeds. The learners' seconds add up to the wall time, an engine's to the part of it in which the engine's slot
        existed, up to the difference of two processes' clocks."""
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

    def _learner_times(self, learner: Spent) -> dict[str, float]:
        spent = since(self._learner_last, learner)
        self._learner_last = learner
        self._learner = added([self._learner, spent])
        return spent

    def _more_gone(self, engines: Sequence[BusyReport]) -> list[float]:
        """Seconds for which each engine has not served, less those that were counted in previous steps."""
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
    """Seconds by state of each engine between two reports, for as long as the engine's slot existed."""
    return [
        filled(since(first.spent, last.spent), last.place_s - first.place_s, EngineState.GONE)
        for first, last in _pairs(before, now)
    ]


def _pairs(before: Sequence[BusyReport], now: Sequence[BusyReport]) -> list[tuple[BusyReport, BusyReport]]:
    return list(zip_longest(before, now, fillvalue=BusyReport(())))


def _rounded(spent: Spent) -> dict[str, float]:
    return {str(state): round(seconds, 3) for state, seconds in spent.items()}
