"""Which engine an episode is given to, and how many episodes an engine may have at a time. Pure.

to        the engine with the fewest tokens under way, each episode counted with what it is expected to add
at most   its places, until a request loses its part of the KV cache to another one (a preemption). Then the limit
          falls by a tenth, and grows by one each time that as many episodes as it allows have ended
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
    """What an engine has to do."""

    tokens: int
    """That its episodes have come to."""
    episodes: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """The mean length of the episodes that ended last."""

    mean: float
    """Before the first has ended: the greatest length that an episode may have."""
    seen: int = 0

    def ended(self, tokens: int) -> "Lengths":
        seen = min(self.seen + 1, RECENT)
        return Lengths(self.mean + (tokens - self.mean) / seen, seen)


def burden(load: Load, lengths: Lengths) -> tuple[float, int]:
    """The smaller one gets the next episode. Without the tokens that are to come, all episodes that begin at one moment
    would go to the engine with the fewest."""
    return load.tokens + lengths.mean * load.episodes, load.episodes


@dataclass(frozen=True, slots=True)
class Admission:
    """How many episodes an engine may have at a time. Where nothing is ever preempted, it is always `most`."""

    most: int
    places: int
    """Now. Episodes beyond it end where they are."""
    ended: int = 0
    """Episodes since the last preemption or change."""
    full: float = 1.0
    """The KV cache's use at the last cut. It is estimated from above, by a factor that depends on the work."""

    @classmethod
    def of(cls, most: int) -> "Admission":
        return cls(most, most)

    def after(self, *, episodes: int, ended: int, preemptions: int, kv_use: float) -> "Admission":
        """What follows from a report of the engine. episodes: that it had until then. ended, preemptions: since the
        report before."""
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
