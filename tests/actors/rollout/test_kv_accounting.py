"""What is known of an engine's KV cache from the outputs of its steps."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from actors.messages import CacheStats
from actors.rollout.config import KvOnUpdate
from actors.rollout.kv_accounting import PREEMPTED, QUEUED, EpisodeCache, KvAccounting


def output(new: int, *, cached: int | None = None, events: Sequence[int] = ()) -> Any:
    """A step's output of a request. cached: of its prompt, where this is its first one."""
    return SimpleNamespace(
        new_token_ids=[7] * new,
        prefill_stats=None if cached is None else SimpleNamespace(num_cached_tokens=cached),
        events=[SimpleNamespace(type=kind) for kind in events] or None,
    )


def test_the_cache_holds_what_was_sampled_too_in_whole_blocks() -> None:
    contexts = KvAccounting()
    contexts.begin("a", 30, EpisodeCache())
    contexts.begin("b", 16, EpisodeCache())
    assert contexts.blocks(16) == 3
    contexts.step("a", output(1, cached=0))
    contexts.step("a", output(40))
    contexts.step("probe", output(5))
    assert contexts.blocks(16) == 5 + 1
    contexts.end("a")
    assert contexts.blocks(16) == 1


def test_contexts_wait_until_their_first_step_and_after_the_cache_is_emptied() -> None:
    contexts = KvAccounting()
    contexts.begin("a", 30, EpisodeCache())
    contexts.begin("b", 16, EpisodeCache())
    assert contexts.waiting == 46
    contexts.step("a", output(4, cached=0))
    assert contexts.waiting == 16
    contexts.clear()
    assert contexts.waiting == 34 + 16
    contexts.step("a", output(1))
    contexts.end("b")
    assert contexts.waiting == 0


def test_an_episode_shares_blocks_across_new_weights_only_if_they_are_kept() -> None:
    """Under keep, one that begins later takes nothing that older weights computed."""
    early, late = EpisodeCache("tenant", syncs=1), EpisodeCache("tenant", syncs=2)
    recompute, keep = KvOnUpdate.recompute, KvOnUpdate.keep
    assert early.key(recompute, 1) != early.key(recompute, 2) == late.key(recompute, 2)
    assert early.key(keep, 1) == early.key(keep, 2) != late.key(keep, 2)
    for mode in KvOnUpdate:
        assert early.key(mode, 2) != EpisodeCache("other", syncs=1).key(mode, 2)
        assert EpisodeCache("2", syncs=1).key(mode, 1) != EpisodeCache("", syncs=12).key(mode, 12)


def test_what_a_later_turn_does_not_find_in_the_cache_was_computed_before() -> None:
    contexts, episode = KvAccounting(), EpisodeCache()
    contexts.begin("1", 100, episode)
    contexts.step("1", output(20, cached=64))  # of another episode of its group
    contexts.end("1")
    assert contexts.stats == CacheStats(prefill=100)
    assert episode.computed == 119, "the last token was not computed"
    contexts.begin("2", 150, episode)
    contexts.step("2", output(1, cached=112))
    assert contexts.stats == CacheStats(prefill=250, recomputed=7)
    contexts.end("2")
    contexts.begin("3", 160, episode)
    contexts.step("3", output(1, cached=0))
    assert contexts.stats == CacheStats(prefill=410, recomputed=7 + 150)


def test_a_preempted_request_and_an_emptied_cache_cost_the_contexts_of_requests_under_way() -> None:
    contexts = KvAccounting()
    for name in ("young", "old", "late"):
        contexts.begin(name, 50, EpisodeCache())
    contexts.step("young", output(10, cached=0))
    contexts.step("old", output(20, cached=0, events=[PREEMPTED]))
    contexts.step("probe", output(1, cached=0, events=[PREEMPTED]))
    assert contexts.stats == CacheStats(preemptions=2, prefill=100)
    contexts.step("young", output(1, events=[QUEUED, QUEUED]))
    assert contexts.stats == CacheStats(preemptions=2, prefill=100 + 2 * 60, recomputed=2 * 59)
    contexts.clear()  # the late one has not begun
    assert contexts.stats == CacheStats(preemptions=2, prefill=220 + 61 + 70, recomputed=118 + 60 + 69)


def test_tokens_of_a_request_are_noted_for_a_caller_that_hears_them_at_its_end() -> None:
    contexts, unheard = KvAccounting(), list[int]()
    contexts.begin("a", 5, EpisodeCache(), unheard)
    contexts.step("a", output(2, cached=0))
    contexts.step("a", output(1))
    assert unheard == [7, 7, 7]
