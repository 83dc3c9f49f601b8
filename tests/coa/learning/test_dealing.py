"""Dealing: samples to ranks by what they cost, groups to updates as wholes."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.dealing import deal, deal_samples, deal_updates, updates_of
from coa.learning.packing import Alike
from coa.types import NO_GROUP, Tokens

QUICK = settings(derandomize=True, max_examples=100, deadline=None, database=None)
LENGTHS = st.lists(st.integers(1, 5000), max_size=60)


def largest_over_mean(lengths: list[int], dealt: list[list[int]], power: int) -> float:
    loads = [sum(lengths[i] ** power for i in share) for share in dealt]
    return max(loads) / (sum(loads) / len(loads))


@pytest.mark.parametrize(("spread", "most"), [(0.3, 10**9), (0.5, 10**9), (1.0, 1600), (1.2, 1600)])
@pytest.mark.parametrize("seed", range(5))
def test_lognormal_lengths_are_dealt_evenly(seed: int, spread: float, most: int) -> None:
    """Episodes have a limit, so the tails of the wide ones are cut."""
    drawn = np.random.default_rng(seed).lognormal(6, spread, 512)
    lengths = np.clip(drawn, 1, most).astype(int).tolist()
    dealt = deal(lengths, 8)
    assert largest_over_mean(lengths, dealt, 1) <= 1.05
    assert largest_over_mean(lengths, dealt, 2) <= 1.10
    # Round-robin, for comparison, is beyond both.
    in_turns = [list(range(rank, 512, 8)) for rank in range(8)]
    assert largest_over_mean(lengths, in_turns, 2) > largest_over_mean(lengths, dealt, 2)


def test_neither_tokens_nor_attention_is_evened_out_at_the_others_cost() -> None:
    """By tokens alone the attention would be 1.08, by attention alone the tokens 1.12."""
    lengths = [800] * 10 + [300] * 60
    dealt = deal(lengths, 4)
    assert largest_over_mean(lengths, dealt, 1) <= 1.05
    assert largest_over_mean(lengths, dealt, 2) <= 1.05


def test_a_sample_that_outweighs_everything_leaves_the_rest_even() -> None:
    dealt = deal([10_000, *[10] * 70], 8)
    assert dealt[0] == [0]
    assert {len(share) for share in dealt[1:]} == {10}


def test_the_longest_stands_alone_and_shares_are_in_order() -> None:
    assert deal([4, 1, 1, 2], 2) == [[0], [1, 2, 3]]
    assert deal([5, 9, 1], 1) == [[0, 1, 2]]
    assert deal([], 3) == [[], [], []]
    assert deal([7], 2) == [[0], []]


@QUICK
@given(lengths=LENGTHS, ranks=st.integers(1, 9))
def test_every_sample_is_dealt_once_and_the_same_way_each_time(lengths: list[int], ranks: int) -> None:
    dealt = deal(lengths, ranks)
    assert sorted(index for share in dealt for index in share) == list(range(len(lengths)))
    assert all(share == sorted(share) for share in dealt)
    assert dealt == deal(list(lengths), ranks)


@QUICK
@given(length=st.integers(1, 5000), count=st.integers(0, 60), ranks=st.integers(1, 9))
def test_equal_samples_are_dealt_in_equal_numbers(length: int, count: int, ranks: int) -> None:
    sizes = [len(share) for share in deal([length] * count, ranks)]
    assert max(sizes) - min(sizes) <= 1


@QUICK
@given(groups=st.lists(st.lists(st.integers(-1, 6), max_size=12), min_size=1, max_size=4), updates=st.integers(1, 5))
def test_an_update_takes_whole_groups_whatever_rank_their_samples_are_on(groups: list[list[int]], updates: int) -> None:
    found = [updates_of(groups, updates, rank) for rank in range(len(groups))]
    where: dict[int, set[int]] = {}
    for rank, shares in enumerate(found):
        assert len(shares) == updates
        assert sorted(index for share in shares for index in share) == list(range(len(groups[rank])))
        for update, share in enumerate(shares):
            for index in share:
                where.setdefault(groups[rank][index], set()).add(update)
    assert all(len(its_updates) == 1 for group, its_updates in where.items() if group != NO_GROUP)
    # Groups are spread evenly.
    counts = [sum(its == {update} for group, its in where.items() if group != NO_GROUP) for update in range(updates)]
    assert max(counts) - min(counts) <= 1


def sequences(lengths: Sequence[int]) -> list[Tokens]:
    """Samples of these lengths that have no token in common."""
    return [np.full(length, number, np.int32) for number, length in enumerate(lengths)]


def grouped(rng: np.random.Generator, groups: int, prompt: int, most: int) -> list[Tokens]:
    """Samples in groups of eight that share a prompt and then part."""
    found: list[Tokens] = []
    for _ in range(groups):
        start = rng.integers(0, 1000, prompt)
        for _ in range(8):
            own = rng.integers(0, 1000, rng.integers(most // 8, most))
            found.append(np.concatenate([start, own]).astype(np.int32))
    return found


def computed(samples: Sequence[Tokens], dealt: list[list[int]]) -> list[int]:
    """Tokens that each rank computes."""
    return [sum(tree.tokens for tree in Alike([samples[i] for i in one]).trees(10**9)) for one in dealt]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("prompt", "most"), [(500, 200), (50, 800), (2000, 100)])
def test_groups_stay_together_and_ranks_compute_alike(seed: int, prompt: int, most: int) -> None:
    samples = grouped(np.random.default_rng(seed), 16, prompt, most)
    dealt = deal_samples(samples, 4)
    assert sorted(i for one in dealt for i in one) == list(range(len(samples)))
    loads, [alone] = computed(samples, dealt), computed(samples, [list(range(len(samples)))])
    assert max(loads) < 1.15 * sum(loads) / 4
    assert sum(loads) < 1.02 * alone, "of what one rank would compute for all"
    spread = computed(samples, deal(list(map(len, samples)), 4))
    assert max(loads) < 1.01 * max(spread), "each sample for itself"


def test_one_group_is_cut_where_ranks_would_wait_for_each_other() -> None:
    samples = grouped(np.random.default_rng(0), 1, 20, 400)
    dealt = deal_samples(samples, 2)
    assert sorted(i for one in dealt for i in one) == list(range(len(samples)))
    assert max(computed(samples, dealt)) < 0.7 * sum(map(len, samples))


def test_a_tree_is_dealt_by_what_its_branches_attend_to() -> None:
    """Each of 80 tokens: two samples, and two groups of which each sample is short."""
    rng = np.random.default_rng(0)

    def after(first: int, tokens: int) -> Tokens:
        return np.array([first, *rng.integers(10, 1000, tokens - 1)], np.int32)

    samples: list[Tokens] = []
    for first in (0, 2):
        trunk = after(first + 1, 8)
        samples += [after(first, 80), *(np.concatenate([trunk, after(9, 8)]) for _ in range(9))]
        for place, sample in enumerate(samples[-9:]):
            sample[8] = 10 + place
    assert [sum(len(samples[i]) == 80 for i in one) for one in deal_samples(samples, 2)] == [1, 1]


def test_where_each_sample_is_computed_whole_its_whole_length_counts() -> None:
    samples = grouped(np.random.default_rng(0), 4, 500, 200)
    assert deal_samples(samples, 3, share=False) == deal(list(map(len, samples)), 3)
    assert deal_samples(samples, 3) != deal(list(map(len, samples)), 3)


def test_samples_that_begin_alike_go_to_one_rank() -> None:
    samples = [np.array(one, np.int32) for one in ([1, 2, 3, 4], [9, 8, 7], [1, 2, 3, 5], [9, 8, 6])]
    assert deal_samples(samples, 2) == [[0, 2], [1, 3]]


@pytest.mark.parametrize("seed", range(3))
def test_each_update_of_a_batch_is_dealt_evenly(seed: int) -> None:
    """64 groups of 8 in 8 updates on 8 ranks. Dealt as one batch, the fullest rank of an update has twice its share."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(6, 0.8, 512), 1, 1600).astype(int).tolist()
    groups = np.repeat(rng.permutation(64), 8).tolist()

    def fullest(dealt: list[list[int]]) -> float:
        """Tokens of the fullest rank over the mean, of all updates together: what they take over what they could."""
        known = [[groups[i] for i in share] for share in dealt]
        found = [updates_of(known, 8, rank) for rank in range(8)]
        tokens = [[sum(lengths[dealt[r][i]] for i in found[r][u]) for r in range(8)] for u in range(8)]
        return 8 * sum(map(max, tokens)) / sum(lengths)

    assert fullest(deal_updates(sequences(lengths), groups, 8, 8)) < 1.10
    assert fullest(deal(lengths, 8)) > 1.4


@QUICK
@given(
    samples=st.lists(st.tuples(st.integers(1, 5000), st.integers(-1, 6)), max_size=40),
    ranks=st.integers(1, 5),
    updates=st.integers(1, 5),
)
def test_every_sample_of_every_update_is_dealt_once(samples: list[tuple[int, int]], ranks: int, updates: int) -> None:
    lengths, groups = zip(*samples, strict=True) if samples else ((), ())
    token_ids = [np.full(length, length % 3, np.int32) for length in lengths]
    dealt = deal_updates(token_ids, groups, ranks, updates)
    assert sorted(index for share in dealt for index in share) == list(range(len(samples)))
    assert all(share == sorted(share) for share in dealt)


def test_what_has_no_group_is_spread_over_the_updates() -> None:
    assert updates_of([[3, 3, 5], [5, 8]], 2, 0) == [[0, 1], [2]]
    assert updates_of([[3, 3, 5], [5, 8]], 2, 1) == [[1], [0]]
    assert updates_of([[NO_GROUP] * 5], 2, 0) == [[0, 2, 4], [1, 3]]
    few = [[NO_GROUP] * 2, [NO_GROUP] * 2]
    assert [updates_of(few, 4, rank) for rank in range(2)] == [[[0], [1], [], []], [[], [], [0], [1]]]
