"""Packing: every sample once, no row too long, and no token predicted from another sample's."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.packing import PackingConfig, fill_rows, micro_batch, pack
from coa.types import Sample

QUICK = settings(derandomize=True, max_examples=100, deadline=None, database=None)


def sample(*token_ids: int, untrained: int = 0) -> Sample:
    """Of token t: imitate t / 2, reinforce -t, log-prob -t / 4, version t + 1; the first `untrained` not trained."""
    ids = np.array(token_ids, np.int32)
    return Sample(
        token_ids=ids,
        loss_mask=np.arange(len(ids)) >= untrained,
        imitate=(ids / 2).astype(np.float32),
        reinforce=-ids.astype(np.float32),
        rollout_logprobs=(-ids / 4).astype(np.float32),
        versions=ids + 1,
    )


def test_two_samples_in_one_row() -> None:
    batch = micro_batch([[sample(5, 6, 7), sample(8, 9)]])
    assert batch.token_ids.tolist() == [[5, 6, 7, 8, 9]]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1]]
    assert batch.segments.tolist() == [[1, 1, 1, 2, 2]]
    assert batch.loss_mask.tolist() == [[False, True, True, False, True]]
    assert batch.imitate.tolist() == [[2.5, 3, 3.5, 4, 4.5]]
    assert batch.reinforce.tolist() == [[-5, -6, -7, -8, -9]]
    assert batch.rollout_logprobs.tolist() == [[-1.25, -1.5, -1.75, -2, -2.25]]
    assert batch.versions.tolist() == [[6, 7, 8, 9, 10]]


def test_a_shorter_row_is_padded_with_what_is_never_trained() -> None:
    batch = micro_batch([[sample(5, 6, 7), sample(8)], [sample(9, 4, untrained=2)]])
    assert batch.token_ids.tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert batch.segments.tolist() == [[1, 1, 1, 2], [1, 1, 0, 0]]
    assert batch.loss_mask.tolist() == [[False, True, True, False], [False] * 4]
    assert batch.imitate.tolist() == [[2.5, 3, 3.5, 4], [4.5, 2, 0, 0]]


def test_arrays_have_the_types_that_the_learner_expects() -> None:
    batch = micro_batch([[sample(5, 6)]])
    integers = {batch.token_ids.dtype, batch.positions.dtype, batch.segments.dtype, batch.versions.dtype}
    floats = {batch.imitate.dtype, batch.reinforce.dtype, batch.rollout_logprobs.dtype}
    assert (integers, floats, batch.loss_mask.dtype) == ({np.dtype(np.int32)}, {np.dtype(np.float32)}, np.bool_)


def test_rows_are_filled_longest_first() -> None:
    assert fill_rows([2, 5, 3, 4, 1], 6) == [[1, 4], [3, 0], [2]]
    assert fill_rows([], 6) == []


def test_a_sample_that_is_longer_than_a_row_gets_one_of_its_own() -> None:
    assert fill_rows([1, 9, 2], 4) == [[1], [2, 0]]


@QUICK
@given(lengths=st.lists(st.integers(1, 12), max_size=30), capacity=st.integers(1, 15))
def test_every_sample_is_in_one_row_and_no_row_is_too_long(lengths: list[int], capacity: int) -> None:
    rows = fill_rows(lengths, capacity)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    assert all(len(row) == 1 or sum(lengths[i] for i in row) <= capacity for row in rows)
    # First fit: no row could have been spared by joining two.
    sums = sorted(sum(lengths[i] for i in row) for row in rows)
    assert len(sums) < 2 or sums[0] + sums[1] > capacity


@QUICK
@given(lengths=st.lists(st.integers(1, 12), max_size=20), capacity=st.integers(1, 15), rows=st.integers(1, 4))
def test_what_was_packed_can_be_read_back(lengths: list[int], capacity: int, rows: int) -> None:
    ids = iter(range(1, 10**6))
    samples = [sample(*(next(ids) for _ in range(length))) for length in lengths]
    batches = pack(samples, PackingConfig(row_tokens=capacity, rows=rows))
    found: list[list[int]] = []
    for batch in batches:
        assert len(batch.token_ids) <= rows
        assert (batch.segments > 0).any(axis=0).all(), "no column is padding in all rows"
        for r, row in enumerate(batch.segments):
            for segment in range(1, row.max() + 1):
                (where,) = np.nonzero(row == segment)
                assert where.tolist() == list(range(where[0], where[-1] + 1))
                assert batch.positions[r, where].tolist() == list(range(len(where)))
                assert batch.loss_mask[r, where].tolist() == [False] + [True] * (len(where) - 1)
                found.append(batch.token_ids[r, where].tolist())
    assert sorted(found) == [one.token_ids.tolist() for one in samples]
    assert all(len(batch.token_ids) == rows for batch in batches[:-1])


def test_rows_of_like_fill_share_a_micro_batch() -> None:
    samples = [sample(*[1] * n) for n in (2, 8, 7, 3)]
    batches = pack(samples, PackingConfig(row_tokens=8, rows=1))
    assert [batch.token_ids.shape for batch in batches] == [(1, 8), (1, 7), (1, 5)]
