"""Which engine an episode is given to, and how many episodes an engine may have at a time. Pure.

engine   the one with the fewest tokens under way; each episode counts with the tokens that it is expected to add
limit    the engine's places, until a request loses its part of the KV cache to another one (a preemption). Then the
         limit falls by a tenth, and grows by one whenever as many episodes as it allows have ended
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

CUT = 0.9
"""Share of its episodes that an engine may have after a preemption."""
ROOM = 0.95
"""Share of the KV cache's use at the last cut up to which the limit grows."""
RECENT = 100
"""Episodes over which lengths are averaged."""


class Load(NamedTuple):
    """Load of an engine."""

    tokens: int
    """Tokens of its episodes so far."""
    episodes: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean length of the RECENT last episodes."""

    mean: float
    """Mean number of tokens; before the first episode has ended, the maximum length of an episode."""
    seen: int = 0

    def ended(self, tokens: int) -> "Lengths":
        seen = min(self.seen + 1, RECENT)
        return Lengths(self.mean + (tokens - self.mean) / seen, seen)


def burden(load: Load, lengths: Lengths) -> tuple[float, int]:
    """Sort key of engines: the smallest gets the next episode. Without the expected tokens, all episodes that begin at
    one moment would go to the same engine."""
    return load.tokens + lengths.mean * load.episodes, load.episodes


@dataclass(frozen=True, slots=True)
class Admission:
    """Limit of the episodes that an engine may have at a time. Without preemptions it is always `most`."""

    most: int
    places: int
    """Current limit. Episodes beyond it end where they are."""
    ended: int = 0
    """Episodes that ended since the last preemption or change of the limit."""
    full: float = 1.0
    """Use of the KV cache at the last cut. It is an upper bound, by a factor that depends on the work."""

    @classmethod
    def of(cls, most: int) -> "Admission":
        return cls(most, most)

    def after(self, *, episodes: int, ended: int, preemptions: int, kv_use: float) -> "Admission":
        """The limit after a report of the engine. episodes: number that the engine had until then. ended, preemptions:
        since the previous report."""
        if preemptions:
            if episodes > self.places:  # the last cut has yet to take effect
                return replace(self, ended=0)
            return Admission(self.most, max(1, int(CUT * episodes)), full=max(1.0, kv_use))
        if self.places == self.most:
            return self
        ended += self.ended
        if ended < self.places or kv_use >= ROOM * self.full:
            return replace(self, ended=min(ended, self.places))
        return replace(self, places=self.places + 1, ended=0)
