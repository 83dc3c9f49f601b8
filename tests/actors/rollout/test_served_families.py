"""Families of models in a real engine: after each of three steps of RL, engine and learner agree, and the model that is
written answers as the engine that was updated."""

import asyncio
from pathlib import Path

import pytest

from tests.support.served_families import FAMILIES, make_served, play

pytestmark = pytest.mark.slow
SAME = 1e-4
ALONE = {"falcon_h1", "granitemoehybrid"}
"""Families whose samples are trained one at a time."""


@pytest.mark.parametrize("family", FAMILIES)
def test_engine_and_learner_agree_on_what_was_brought(family: str, one_rank: None, tmp_path: Path) -> None:
    make_served(family, tmp_path / "model")
    found = asyncio.run(play(tmp_path / "model"))
    assert found.packed is (family not in ALONE)
    assert max(found.apart) < SAME
    assert found.exported < SAME
    assert found.changed > 100 * SAME
