"""Packing: every sample once, no row too long, each beginning once, and no token that sees another sample's."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.packing import SEEN, Alike, MicroBatch, PackingConfig, fill_rows, micro_batch, pack
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


def paths(batch: MicroBatch) -> list[list[int]]:
    """The places in the line of each sample's tokens, for samples all of whose tokens but the first are trained."""
    found: list[list[int]] = []
    for number in range(len(batch.members)):
        here = batch.segments == number
        assert batch.predictors[here][1:].tolist() == batch.trained[here][:-1].tolist()
        found.append([batch.predictors[here][0], *batch.trained[here].tolist()])
    return found


def flat(batch: MicroBatch, field: str) -> list[int]:
    """An array of the rows as the line."""
    return getattr(batch, field)[batch.ends > 0].tolist()


def test_samples_that_begin_alike_share_these_tokens() -> None:
    batch = micro_batch([[sample(5, 6, 7), sample(5, 6, 8, 9), sample(4, 3)]])
    assert batch.token_ids.tolist() == [[5, 6, 7, 8, 9, 4, 3]]
    assert batch.positions.tolist() == [[0, 1, 2, 2, 3, 0, 1]]
    assert batch.ends.tolist() == [[5, 5, 3, 5, 5, 7, 7]]
    assert [(branch.prefix.tolist(), branch.tokens) for branch in batch.branches] == [([], 3), ([0, 1], 2), ([], 2)]
    assert batch.trained.tolist() == [1, 2, 1, 3, 4, 6]
    assert batch.predictors.tolist() == [0, 1, 0, 1, 3, 5]
    assert batch.segments.tolist() == [0, 0, 1, 1, 1, 2]
    assert batch.imitate.tolist() == [3, 3.5, 3, 4, 4.5, 1.5]
    assert batch.reinforce.tolist() == [-6, -7, -6, -8, -9, -3]
    assert batch.rollout_logprobs.tolist() == [-1.5, -1.75, -1.5, -2, -2.25, -0.75]
    assert batch.versions.tolist() == [7, 8, 7, 9, 10, 4]
    assert (batch.members, batch.tokens) == ((0, 1, 2), 7)


def test_a_sample_that_is_the_beginning_of_another_or_equal_to_it_adds_no_token() -> None:
    batch = micro_batch([[sample(5, 6), sample(5, 6), sample(5, 6, 7)]])
    assert batch.token_ids.tolist() == [[5, 6, 7]]
    assert batch.ends.tolist() == [[3, 3, 3]]
    assert paths(batch) == [[0, 1], [0, 1], [0, 1, 2]]
    assert [branch.tokens for branch in batch.branches] == [2, 1]


def test_a_tree_has_branches_of_branches() -> None:
    batch = micro_batch([[sample(1, 2, 3), sample(1, 2, 4, 5), sample(1, 2, 4, 6), sample(1, 7)]])
    assert batch.token_ids.tolist() == [[1, 2, 3, 4, 5, 6, 7]]
    assert batch.ends.tolist() == [[7, 6, 3, 6, 5, 6, 7]]
    assert [branch.prefix.tolist() for branch in batch.branches] == [[], [0, 1], [0, 1, 3], [0]]


def test_prompts_that_differ_by_one_token_share_what_is_before_it() -> None:
    batch = micro_batch([[sample(1, 2, 3, 9, 9), sample(1, 2, 4, 9, 9)]])
    assert batch.token_ids.tolist() == [[1, 2, 3, 9, 9, 4, 9, 9]]


def test_nothing_is_shared_if_it_is_not_asked_for() -> None:
    batch = micro_batch([[sample(5, 6, 7), sample(5, 6)]], share=False)
    assert batch.token_ids.tolist() == [[5, 6, 7, 5, 6]]
    assert batch.ends.tolist() == [[3, 3, 3, 5, 5]]
    [whole] = pack([sample(5, 6, 7), sample(5, 6)], PackingConfig(share_prefixes=False))
    assert whole.tokens == 5


def test_a_shorter_row_is_padded_with_what_is_never_trained() -> None:
    batch = micro_batch([[sample(5, 6, 7), sample(8)], [sample(9, 4, untrained=2)]])
    assert batch.token_ids.tolist() == [[5, 6, 7, 8], [9, 4, 0, 0]]
    assert batch.positions.tolist() == [[0, 1, 2, 0], [0, 1, 0, 0]]
    assert batch.ends.tolist() == [[3, 3, 3, 4], [2, 2, 0, 0]]
    assert batch.trained.tolist() == [1, 2]
    assert len(batch.members) == 3, "samples without a trained token are counted"
    assert batch.untrained == 4, "the first token of each sample, and one more"


def test_arrays_have_the_types_that_the_learner_expects() -> None:
    batch = micro_batch([[sample(5, 6)], [sample(3)]])
    integers = {one.dtype for one in (batch.token_ids, batch.positions, batch.ends, batch.versions)}
    floats = {batch.imitate.dtype, batch.reinforce.dtype, batch.rollout_logprobs.dtype}
    places = {batch.trained.dtype, batch.predictors.dtype, batch.segments.dtype, batch.branches[0].prefix.dtype}
    assert (integers, floats, places) == ({np.dtype(np.int32)}, {np.dtype(np.float32)}, {np.dtype(np.int64)})


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
@given(
    drawn=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=9), min_size=1, max_size=20),
    capacity=st.integers(1, 15),
    rows=st.integers(1, 4),
)
def test_what_was_packed_can_be_read_back(drawn: list[list[int]], capacity: int, rows: int) -> None:
    """Of three different tokens, so that many begin alike."""
    batches = pack([sample(*one) for one in drawn], PackingConfig(row_tokens=capacity, rows=rows))
    assert sorted(i for batch in batches for i in batch.members) == list(range(len(drawn)))
    for batch in batches:
        assert len(batch.token_ids) <= rows
        assert (batch.ends > 0).any(axis=0).all(), "no column is padding in all rows"
        ids, positions = flat(batch, "token_ids"), flat(batch, "positions")
        assert batch.tokens == len(ids)
        starts = np.cumsum([0, *(branch.tokens for branch in batch.branches)])
        seen = {
            (start + own): [*branch.prefix.tolist(), *range(start, start + own + 1)]
            for start, branch in zip(starts[:-1].tolist(), batch.branches, strict=True)
            for own in range(branch.tokens)
        }
        for member, path in zip(batch.members, paths(batch), strict=True):
            assert [ids[place] for place in path] == drawn[member]
            assert [positions[place] for place in path] == list(range(len(path)))
            assert all(seen[place] == path[: at + 1] for at, place in enumerate(path)), "attention along the branches"
        lengths = (batch.ends > 0).sum(axis=1)
        for first, length, ends in zip(np.cumsum(lengths) - lengths, lengths, batch.ends, strict=True):
            for q in range(length):
                masked = [first + k for k in range(q + 1) if q < ends[k]]
                assert masked == seen[first + q], "attention by the mask"
    assert all(len(batch.token_ids) == rows for batch in batches[:-1])


@QUICK
@given(drawn=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), max_size=20), capacity=st.integers(1, 15))
def test_a_tree_holds_each_beginning_once_and_at_most_a_row(drawn: list[list[int]], capacity: int) -> None:
    found = Alike([np.array(one, np.int32) for one in drawn]).trees(capacity)
    assert sorted(i for tree in found for i in tree.members) == list(range(len(drawn)))
    for tree in found:
        begun = {tuple(drawn[i][:length]) for i in tree.members for length in range(1, len(drawn[i]) + 1)}
        assert tree.tokens == len(begun)
        longest = max(len(drawn[i]) for i in tree.members)
        assert tree.tokens <= max(capacity, longest)
        assert tree.seen <= max(SEEN * capacity, longest)


def test_a_group_larger_than_a_row_is_cut_into_trees_that_repeat_its_trunk() -> None:
    group = [np.array([1, 2, 3, 4, n, n], np.int32) for n in range(10, 14)]
    assert [(tree.members, tree.tokens) for tree in Alike(group).trees(8)] == [((0, 1), 8), ((2, 3), 8)]


def test_a_tree_knows_what_attention_costs() -> None:
    """A sample of 6 tokens, 2 more behind 4 of them, and one that adds nothing."""
    samples = [np.array(one, np.int32) for one in ([1, 2, 3, 4, 5, 5], [1, 2, 3, 4, 6, 6], [1, 2, 3, 4, 6, 6])]
    [tree] = Alike(samples).trees(100)
    assert (tree.tokens, tree.seen, tree.attention) == (8, 12, 36 + 2 * 6)


def test_branches_of_a_row_see_a_bounded_number_of_tokens() -> None:
    """Their keys and values are copied."""
    group = [np.array([*range(90), 100 + n], np.int32) for n in range(20)]
    assert [len(tree.members) for tree in Alike(group).trees(128)] == [11, 9]


def test_rows_of_like_fill_share_a_micro_batch() -> None:
    samples = [sample(*range(first, first + n)) for first, n in ((100, 2), (200, 8), (300, 7), (400, 3))]
    batches = pack(samples, PackingConfig(row_tokens=8, rows=1))
    assert [batch.token_ids.shape for batch in batches] == [(1, 8), (1, 7), (1, 5)]
