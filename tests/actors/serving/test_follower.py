"""New weights of a run that are taken over while a replica serves."""

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from actors.serving.follower import Follower, read_weights
from coa.errors import DamagedWeights, SyncError, WeightsGone
from coa.serving.following import Made

FIRST, SECOND = Made(10, Path("a"), "a"), Made(20, Path("b"), "b")


class Replica:
    """What a follower loads into."""

    def __init__(self, *, failing: dict[int, Exception] | None = None) -> None:
        self.loaded: list[tuple[int, Any]] = []
        self.failing = failing or {}

    async def load(self, version: int, weights: Any) -> float:
        if version in self.failing:
            raise self.failing[version]
        self.loaded.append((version, weights))
        return 0.0


def following(found: list[Made | None], replica: Replica) -> Follower:
    """A follower that finds these, one after the other."""
    return Follower(
        lambda: found.pop(0), replica.load, every_s=0.0, read=lambda made: np.full(1, made.version, np.uint8)
    )


def catch_up(follower: Follower, times: int) -> list[bool]:
    async def go() -> list[bool]:
        return [await follower.catch_up() for _ in range(times)]

    return asyncio.run(go())


def test_each_version_is_taken_over_once() -> None:
    replica = Replica()
    assert catch_up(following([None, FIRST, FIRST, SECOND], replica), 4) == [False, True, False, True]
    assert replica.loaded == [(10, np.uint8(10)), (20, np.uint8(20))]


def test_weights_that_are_refused_are_left_out_and_the_next_are_taken(caplog: pytest.LogCaptureFixture) -> None:
    replica = Replica(failing={10: DamagedWeights("bucket 0 of 1 was changed")})
    with caplog.at_level(logging.WARNING):
        assert catch_up(following([FIRST, FIRST, SECOND], replica), 3) == [False, False, True]
    assert [record.getMessage() for record in caplog.records] == [
        "version 10 of a is left out: bucket 0 of 1 was changed"
    ]
    assert [version for version, _ in replica.loaded] == [20]


def test_a_replica_without_weights_is_told() -> None:
    """Its task ends with the error, and the health check with the task."""
    replica = Replica(failing={10: WeightsGone("half of it")})
    with pytest.raises(WeightsGone):
        asyncio.run(following([FIRST], replica).run())


def states(path: Path, module: dict[str, torch.Tensor], frozen: object = None) -> Made:
    torch.save({"module": module, "frozen_param_shapes": frozen}, path)
    return Made(1, path, "one")


def test_the_policy_of_a_checkpoint_has_the_models_names(tmp_path: Path) -> None:
    module = {"model.model.norm.weight": torch.tensor([1.0, 2.0]), "value_head.weight": torch.ones(2)}
    weights = read_weights(states(tmp_path / "states.pt", module))
    assert isinstance(weights, np.ndarray)
    found = load(weights.tobytes())
    assert {name: tensor.tolist() for name, tensor in found.items()} == {"model.norm.weight": [1.0, 2.0]}


def test_sharded_weights_and_adapters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SyncError, match="sharded or adapters"):
        read_weights(states(tmp_path / "zero3.pt", {"model.norm.weight": torch.ones(0)}))
    with pytest.raises(SyncError, match="sharded or adapters"):
        read_weights(states(tmp_path / "lora.pt", {"model.norm.weight": torch.ones(1)}, {"model.norm": 1}))


def test_a_checkpoint_that_the_run_has_removed_is_left_out(tmp_path: Path) -> None:
    replica = Replica()
    gone = Made(1, tmp_path / "gone.pt", "gone")
    assert catch_up(Follower(lambda: gone, replica.load, every_s=0.0), 1) == [False]
    assert replica.loaded == []


@pytest.mark.parametrize("kept", [0, 10, 1000])
def test_a_checkpoint_that_is_cut_short_is_left_out(tmp_path: Path, kept: int) -> None:
    made = states(tmp_path / "states.pt", {"model.norm.weight": torch.ones(5000)})
    made.path.write_bytes(made.path.read_bytes()[:kept])
    replica = Replica()
    assert catch_up(Follower(lambda: made, replica.load, every_s=0.0), 1) == [False]
    assert replica.loaded == []


class Code:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._path),)


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    made = states(tmp_path / "states.pt", {"model.norm.weight": torch.ones(1)}, Code(tmp_path / "run"))
    with pytest.raises(SyncError, match="not a whole checkpoint"):
        read_weights(made)
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_learners_checkpoint_is_left_out(tmp_path: Path) -> None:
    torch.save({"other": 1}, tmp_path / "states.pt")
    with pytest.raises(SyncError, match="not a whole checkpoint: 'module'"):
        read_weights(Made(1, tmp_path / "states.pt", "one"))
