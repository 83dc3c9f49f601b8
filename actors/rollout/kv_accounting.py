"""Accounts of an engine's KV cache: what it holds of the requests under way, and how much was computed more than once.

It is counted from the outputs of each step, as vLLM's own statistics cost more (`actors.rollout.adapter`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.messages import CacheStats
from actors.rollout.config import KvOnUpdate

if TYPE_CHECKING:
    import vllm.v1.engine

QUEUED, PREEMPTED = 1, 3
"""Types of vLLM's events (`vllm.v1.engine.EngineCoreEventType`): this request was preempted before this output; some
request was, just now (`actors.rollout.structured_outputs.tell_preemptions`)."""


@dataclass(slots=True)
class EpisodeCache:
    """The part of one engine's KV cache that one episode uses."""

    salt: str = ""
    """Episodes of another salt share no blocks with it."""
    syncs: int = 0
    """Weights that the engine had loaded when the episode began on it."""
    computed: int = 0
    """Tokens of the context that were computed for the episode's turns so far."""

    def key(self, kv_on_update: KvOnUpdate, syncs: int) -> str:
        """The cache salt of the next turn, if the engine has loaded weights `syncs` times.

        recompute: no block that older weights computed is used. keep: those since the episode began are, but none of
        before, so that a prompt which all episodes share is not kept from the first version to the last.
        """
        return f"{syncs if kv_on_update is KvOnUpdate.recompute else self.syncs}/{self.salt}"


@dataclass(slots=True)
class _Request:
    cache: EpisodeCache
    prompt: int
    unsent: list[int] | None
    sampled: int = 0
    computed: bool = False
    """Whether its context is in the cache."""

    @property
    def context(self) -> int:
        return self.prompt + self.sampled


class KvAccounting:
    """The requests under way."""

    def __init__(self) -> None:
        self.stats = CacheStats()
        self._requests: dict[str, _Request] = {}

    def blocks(self, size: int) -> int:
        """Maximum number of blocks of `size` tokens that they have in the KV cache: a prefix that several share counts
        for each, and a request that waits for its place counts too."""
        return sum(-(-request.context // size) for request in self._requests.values())

    @property
    def waiting(self) -> int:
        """Tokens of contexts that are to be computed, or found in the cache, before their requests' next tokens."""
        return sum(request.context for request in self._requests.values() if not request.computed)

    def begin(self, name: str, prompt: int, cache: EpisodeCache, unsent: list[int] | None = None) -> None:
        """unsent: gets the tokens as they come, for a caller that is told them only if the request is cut off."""
        self._requests[name] = _Request(cache, prompt, unsent)

    def step(self, name: str, output: "vllm.v1.engine.EngineCoreOutput") -> None:
        """Takes a step's output of a request: vLLM's EngineCoreOutput."""
        events: list[int] = [event.type for event in output.events or ()]
        if PREEMPTED in events:
            self.stats += CacheStats(preemptions=events.count(PREEMPTED))
        if (request := self._requests.get(name)) is None:
            return
        if output.prefill_stats is not None:
            again = max(0, min(request.cache.computed, request.prompt) - output.prefill_stats.num_cached_tokens)
            self.stats += CacheStats(prefill=request.prompt, recomputed=again)
        for _ in range(events.count(QUEUED)):
            self._lose(request)
        if request.unsent is not None:
            request.unsent += output.new_token_ids
        request.sampled += len(output.new_token_ids)
        request.computed = True

    def end(self, name: str) -> None:
        request = self._requests.pop(name)
        if request.sampled:
            request.cache.computed = request.context - 1

    def clear(self) -> None:
        """The cache was emptied: requests under way compute their contexts again."""
        for request in self._requests.values():
            self._lose(request)

    def _lose(self, request: _Request) -> None:
        """Whatever is still in the cache of a preempted request counts as lost: only the core knows it."""
        request.computed = False
        if request.sampled:  # else it may not have been computed at all
            self.stats += CacheStats(prefill=request.context, recomputed=request.context - 1)
