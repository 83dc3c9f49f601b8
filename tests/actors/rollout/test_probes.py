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


def checked(*differences: Floats) -> SyncReport:
    """Of an engine whose log-probs are so far from the learner's, for each probe."""
    probes = [Probe(token_ids=np.full(len(d) + 1, n), logprobs=np.zeros_like(d)) for n, d in enumerate(differences)]

    async def version() -> int:
        return 3

    async def logprobs(token_ids: Tokens) -> Floats:
        return differences[int(token_ids[0])]

    engine: Any = object.__new__(RolloutEngine)
    engine._config = EngineConfig(probe_tolerance=TOLERANCE)
    engine.policy = SimpleNamespace(version=version, logprobs=logprobs)
    return asyncio.run(engine.check(3, probes, pause_s=0.25))


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
