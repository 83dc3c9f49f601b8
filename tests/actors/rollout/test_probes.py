"""What an engine says of its log-probs beside the learner's, after it has loaded new weights."""

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.messages import Probe, SyncReport
from actors.rollout.config import EngineConfig
from actors.rollout.engine import RolloutEngine
from coa.types import Floats, Tokens

TOLERANCE = 0.5
"""That bfloat16 recipes set."""
ROUNDING = np.tile(np.array([0.25, 0.0, -0.03125, 0.0, 0.0, 0.015625, 0.0, 0.0], np.float32), 16)
"""Large here and there, and small on average."""


class Probed:
    """An engine with given log-probs."""

    def __init__(self) -> None:
        self.engine: Any = object.__new__(RolloutEngine)
        self.engine._config = EngineConfig(probe_tolerance=TOLERANCE)
        self.engine._answers, self.engine._answered = {}, None

    def check(self, *answers: tuple[Floats, Floats], version: int = 3) -> SyncReport:
        """answers: the engine's log-probs and the learner's, for each probe."""
        probes = [
            Probe(token_ids=np.full(len(ours) + 1, n), logprobs=theirs) for n, (ours, theirs) in enumerate(answers)
        ]

        async def runs() -> int:
            return version

        async def logprobs(token_ids: Tokens) -> Floats:
            return answers[int(token_ids[0])][0]

        self.engine.policy = SimpleNamespace(version=runs, logprobs=logprobs, patience_s=lambda tokens=0: 60.0)
        return asyncio.run(self.engine.check(version, probes, pause_s=0.25))


def checked(*differences: Floats) -> SyncReport:
    """Of an engine whose log-probs are so far from the learner's, for each probe."""
    return Probed().check(*((one, np.zeros_like(one)) for one in differences))


def test_differences_are_reported_over_the_tokens_of_all_probes() -> None:
    report = checked(np.array([0.25, -0.125], np.float32), np.array([0.0, 0.0], np.float32))
    assert report == SyncReport(version=3, logprob_diff=0.25, logprob_mean_diff=0.09375, pause_s=0.25, alarm=True)
    assert checked() == SyncReport(version=3, logprob_diff=0.0, logprob_mean_diff=0.0, pause_s=0.25)


def test_rounding_is_no_alarm_and_old_weights_are_one_below_the_largest_difference_of_rounding() -> None:
    assert not checked(ROUNDING).alarm
    old = checked(ROUNDING + np.float32(0.0625))
    assert old.logprob_diff < TOLERANCE
    assert old.alarm


@pytest.mark.parametrize("one", [0.75, float("nan")])
def test_one_token_that_is_far_away_is_an_alarm(one: float) -> None:
    differences = ROUNDING.copy()
    differences[5] = one
    assert checked(differences).alarm


def test_weights_that_were_not_taken_are_an_alarm_within_any_tolerance() -> None:
    """From one version to the next the learner's log-probs change by less than rounding."""
    fixed, learner = ROUNDING, np.zeros_like(ROUNDING)
    later = learner + np.float32(1e-4)
    engine, fresh = Probed(), np.ones(3, np.float32)
    assert not engine.check((fixed, learner), version=0).alarm, "nothing to compare with"
    found = engine.check((fixed, later), version=1)
    assert (found.alarm, found.unmoved) == (True, True)
    assert not engine.check((fixed, learner), version=1).alarm, "the same version, computed again"
    assert not engine.check((fixed, learner), version=2).alarm, "the learner's have not changed"
    assert not engine.check((fixed + np.float32(1e-4), later), version=3).alarm
    engine.check((fixed, learner), (fresh, fresh), version=4)
    of_their_own = (2 * fresh[:2], fresh[:2])
    assert engine.check((fixed, later), of_their_own, version=5).unmoved, "sequences of one version say nothing"
    assert not engine.check((fresh, fresh), version=6).alarm, "no sequence is in both"
