"""Recorded batches: they come back bit for bit, and a byte that was changed is found."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from coa.errors import DamagedFile
from coa.learning.batches import ARRAYS, BatchStore
from coa.types import NO_GROUP, Sample


def a_sample(length: int, group: int) -> Sample:
    dice = np.random.default_rng(length)
    floats = dice.normal(size=length).astype(np.float32)
    floats[:3] = [-0.0, 0.0, np.nan]
    return Sample(
        token_ids=dice.integers(0, 1000, length).astype(np.int32),
        loss_mask=dice.random(length) < 0.5,
        imitate=np.zeros(length, np.float32),
        reinforce=-floats,
        rollout_logprobs=floats,
        versions=np.full(length, 3, np.int32),
        group=group,
    )


@pytest.fixture
def store(tmp_path: Path) -> BatchStore:
    return BatchStore(tmp_path / "batches")


@pytest.mark.parametrize(
    "shares",
    [[[a_sample(5, 7), a_sample(90, 1_000_007)], [a_sample(33, NO_GROUP)]], [[], [a_sample(4, 0)], []], [[], []]],
    ids=["two ranks", "ranks without samples", "no samples at all"],
)
def test_a_batch_comes_back_bit_for_bit(store: BatchStore, shares: list[list[Sample]]) -> None:
    store.write(12, shares)
    found = store.read(12)
    assert [[sample.group for sample in share] for share in found] == [[s.group for s in share] for share in shares]
    for given, back in zip(chain(*shares), chain(*found), strict=True):
        for name in ARRAYS:
            one, other = getattr(given, name), getattr(back, name)
            assert (one.dtype, one.tobytes()) == (other.dtype, other.tobytes()), name


def test_any_byte_that_was_changed_is_found(store: BatchStore) -> None:
    store.write(1, [[a_sample(20, 0)]])
    path = store.path(1)
    written = path.read_bytes()
    for at in (0, len(written) // 2, len(written) - 1):
        path.write_bytes(written[:at] + bytes([written[at] ^ 1]) + written[at + 1 :])
        with pytest.raises(DamagedFile, match=r"rl-00001\.arrow was changed since it was recorded"):
            store.read(1)
    path.unlink()
    with pytest.raises(DamagedFile, match="missing"):
        store.read(1)


def test_a_step_that_is_done_again_takes_the_place_of_the_first(store: BatchStore) -> None:
    for length in (20, 30):
        store.write(1, [[a_sample(length, 0)]])
    assert [len(sample) for [sample] in store.read(1)] == [30]
    assert store.steps() == [1]
