"""How long an engine takes to compute the contexts of requests, measured from the outputs of its steps."""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import vllm.v1.engine

LEAST_TOKENS = 64
"""Minimum tokens of a step whose time counts: that of a smaller one is hardly that of its tokens."""
MOST_TIMES = 16
"""Number of times that a step's own seconds are expected at most: a part of them, as of a first step while code is
compiled, does not grow with the tokens."""
MOST_S = 450.0
"""Maximum seconds that are expected. Nothing is gained by an engine that takes longer, and one that hangs is found."""
LEAST_S = 0.001
"""Minimum seconds of a step: vLLM hands out the outputs of a large step in parts, one right after the other."""


class PrefillPace:
    """The time of the last step that computed about as many tokens as any. It is the time from one output to the next,
    so `begin` must be called whenever the engine starts working after a rest."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = clock()
        self._largest = 0
        self._tokens, self._took_s = 0, 0.0

    def begin(self) -> None:
        self._since = self._clock()

    def stepped(self, computed: Iterable[int]) -> None:
        """A step has ended. computed: tokens of contexts that it computed, for each of its requests."""
        now, tokens = self._clock(), sum(computed)
        took_s, self._since = now - self._since, now
        # Half as many tokens say as much of the pace, and the machine may be slower or faster than before.
        if took_s >= LEAST_S and tokens >= max(LEAST_TOKENS, self._largest // 2):
            self._largest = max(self._largest, tokens)
            self._tokens, self._took_s = tokens, took_s

    @property
    def is_measured(self) -> bool:
        return self._tokens > 0

    def seconds(self, tokens: int, most: int | None = None) -> float:
        """Seconds that so many tokens take, or `most` of them if they are more; 0 before a step was measured."""
        times = (tokens if most is None else min(tokens, most)) / max(self._tokens, 1)
        return min(MOST_S, self._took_s * min(times, MOST_TIMES))


def computed_tokens(output: "vllm.v1.engine.EngineCoreOutput") -> int:
    """Tokens of a request's context that a step computed; 0 after the first. output: vLLM's EngineCoreOutput."""
    stats = output.prefill_stats
    return 0 if stats is None else stats.num_computed_tokens
