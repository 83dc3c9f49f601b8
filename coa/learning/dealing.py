"""Divides a batch: assigns samples to ranks, and groups to the updates of a step."""

from collections.abc import Sequence

from coa.learning.packing import Alike
from coa.types import NO_GROUP, Tokens

PIECES = (1, 2, 4, 8)
"""Sizes of trees that are tried, in parts of what a rank computes: smaller ones are easier to balance, and more of them
repeat their trunks on several ranks."""


def deal(lengths: Sequence[int], ranks: int, attention: Sequence[int] | None = None) -> list[list[int]]:
    """Returns for each rank the ascending indices of its samples, balanced by tokens and by the cost of attention: by
    default the length squared.

    Samples are assigned greedily, the longest first, each to the rank whose load is smallest afterwards. A rank's load
    is the maximum of its shares of tokens and of attention, relative to an even split, or to the longest sample if that
    is more than an even share. The result depends on the lengths alone.

        deal([4, 1, 1, 2], 2) == [[0], [1, 2, 3]]
    """
    found: list[list[int]] = [[] for _ in range(ranks)]
    costs = [length**2 for length in lengths] if attention is None else attention
    share = max(sum(lengths) / ranks, max(lengths, default=0), 1)
    cost = max(sum(costs) / ranks, max(costs, default=0), 1)
    tokens, spent = [0.0] * ranks, [0.0] * ranks
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        more, dearer = lengths[index] / share, costs[index] / cost
        to = min(range(ranks), key=lambda r: (max(tokens[r] + more, spent[r] + dearer), tokens[r] + spent[r], r))
        found[to].append(index)
        tokens[to] += more
        spent[to] += dearer
    return [sorted(indices) for indices in found]


def deal_samples(samples: Sequence[Tokens], ranks: int, *, share: bool = True) -> list[list[int]]:
    """Like `deal`, with samples that begin alike on one rank, which computes what they share once (`packing.trees`);
    balanced by the tokens that are computed. share: whether ranks do so.

        deal_samples([[1, 2, 3, 4], [9, 8, 7], [1, 2, 3, 5], [9, 8, 6]], 2) == [[0, 2], [1, 3]]
    """
    if not share:
        return deal(list(map(len, samples)), ranks)
    if ranks == 1:
        return [list(range(len(samples)))]
    alike = Alike(samples)
    whole = sum(tree.tokens for tree in alike.trees(sum(map(len, samples))))
    capacities = [whole, *(max(1, whole // (pieces * ranks)) for pieces in PIECES)]
    return min(
        (_dealt_in_trees(alike, ranks, capacity) for capacity in capacities),
        key=lambda dealt: max(_computed([samples[i] for i in indices]) for indices in dealt),
    )


def _dealt_in_trees(alike: Alike, ranks: int, capacity: int) -> list[list[int]]:
    pieces = alike.trees(capacity)
    dealt = deal([tree.tokens for tree in pieces], ranks, [tree.attention for tree in pieces])
    return [sorted(index for piece in one for index in pieces[piece].members) for one in dealt]


def _computed(samples: Sequence[Tokens]) -> int:
    """Number of tokens that a rank computes."""
    return sum(tree.tokens for tree in Alike(samples).trees(sum(map(len, samples))))


def deal_updates(
    samples: Sequence[Tokens], groups: Sequence[int], ranks: int, updates: int, *, share: bool = True
) -> list[list[int]]:
    """Like `deal_samples`, for a batch that is trained in several updates: each update is balanced separately, since
    ranks wait for one another at its end. `groups`: the group of each sample. `updates_of` finds the same updates
    again.

        deal_updates([[1, 1, 1], [2, 2, 2], [1], [2]], [0, 1, 0, 1], 2, 2) == [[0, 1], [2, 3]]
    """
    if updates == 1:
        return deal_samples(samples, ranks, share=share)
    update_of = _update_of(groups, updates)
    found: list[list[int]] = [[] for _ in range(ranks)]
    for update in (*range(updates), None):  # None: samples without a group, which are spread over the updates
        chosen = [index for index, group in enumerate(groups) if update_of.get(group) == update]
        for rank, dealt in enumerate(deal_samples([samples[i] for i in chosen], ranks, share=share)):
            found[rank].extend(chosen[at] for at in dealt)
    return [sorted(indices) for indices in found]


def updates_of(groups: Sequence[Sequence[int]], updates: int, rank: int) -> list[list[int]]:
    """Returns for each update the indices of this rank's samples.

    `groups`: for every rank, the group of each of its samples. All samples of a group are in the same update on all
    ranks, so every rank has to know all groups. Samples without a group are distributed round-robin over the updates,
    counting across ranks.

        updates_of([[3, 3, 5], [5, 8]], 2, rank=0) == [[0, 1], [2]]        update 0: groups 3 and 8, update 1: group 5
    """
    update_of = _update_of([group for one in groups for group in one], updates)
    found: list[list[int]] = [[] for _ in range(updates)]
    alone = sum(group == NO_GROUP for one in groups[:rank] for group in one)
    for index, group in enumerate(groups[rank]):
        if group == NO_GROUP:
            found[alone % updates].append(index)
            alone += 1
        else:
            found[update_of[group]].append(index)
    return found


def _update_of(groups: Sequence[int], updates: int) -> dict[int, int]:
    """The update of each group; NO_GROUP has no entry."""
    return {group: index % updates for index, group in enumerate(sorted({*groups} - {NO_GROUP}))}
