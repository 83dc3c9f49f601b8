"""Divides a batch: assigns samples to ranks, and groups to the updates of a step."""

from collections.abc import Sequence

from coa.types import NO_GROUP


def deal(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Returns for each rank the ascending indices of its samples, balanced by tokens and by the cost of attention
    (length squared).

    Samples are assigned greedily, the longest first, each to the rank whose load is smallest afterwards. A rank's load
    is the maximum of its shares of tokens and of attention, relative to an even split, or to the longest sample if that
    is more than an even share. The result depends on the lengths alone.

        deal([4, 1, 1, 2], 2) == [[0], [1, 2, 3]]
    """
    found: list[list[int]] = [[] for _ in range(ranks)]
    longest = max(lengths, default=0)
    share = max(sum(lengths) / ranks, longest, 1)
    cost = max(sum(length**2 for length in lengths) / ranks, longest**2, 1)
    tokens, squares = [0.0] * ranks, [0.0] * ranks
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        more, dearer = lengths[index] / share, lengths[index] ** 2 / cost
        to = min(range(ranks), key=lambda r: (max(tokens[r] + more, squares[r] + dearer), tokens[r] + squares[r], r))
        found[to].append(index)
        tokens[to] += more
        squares[to] += dearer
    return [sorted(indices) for indices in found]


def deal_updates(lengths: Sequence[int], groups: Sequence[int], ranks: int, updates: int) -> list[list[int]]:
    """Like `deal`, for a batch that is trained in several updates: each update is balanced separately, since ranks wait
    for one another at its end. `groups`: the group of each sample. `updates_of` finds the same updates again.

        deal_updates([4, 4, 1, 1], [0, 1, 0, 1], 2, 2) == [[0, 1], [2, 3]]
    """
    if updates == 1:
        return deal(lengths, ranks)
    update_of = _update_of(groups, updates)
    found: list[list[int]] = [[] for _ in range(ranks)]
    for update in (*range(updates), None):  # None: samples without a group, which are spread over the updates
        chosen = [index for index, group in enumerate(groups) if update_of.get(group) == update]
        for rank, share in enumerate(deal([lengths[index] for index in chosen], ranks)):
            found[rank].extend(chosen[at] for at in share)
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
