"""Which parts of a run are struck, in which order: drawn from a seed. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PAUSE_S = (5.0, 20.0)
"""Shortest and longest time between a recovery and the next strike."""
STOP_S = 60.0
"""For so long a stopped process stays stopped."""


class Part(StrEnum):
    """A process of a run, or what stands for several."""

    engine = "engine"
    """The actor of a rollout engine."""
    core = "core"
    """The process of an engine in which vLLM computes."""
    tools = "tools"
    """A tool executor."""
    teacher = "teacher"
    """The team of the teacher fallback."""
    buffer = "buffer"
    """Between driver and learners."""
    rank = "rank"
    """Of the learners."""
    node = "node"
    """A machine of the cluster, here all its processes."""
    driver = "driver"
    """The command that trains."""


class Kind(StrEnum):
    """What is done to a part: killed, or stopped for STOP_S."""

    engine = "engine"
    core = "core"
    tools = "tools"
    teacher = "teacher"
    buffer = "buffer"
    rank = "rank"
    node = "node"
    driver = "driver"
    stop_engine = "stop_engine"
    stop_rank = "stop_rank"

    @property
    def stops(self) -> bool:
        return self in (Kind.stop_engine, Kind.stop_rank)

    @property
    def part(self) -> Part:
        return Part(self.value.removeprefix("stop_"))


@dataclass(frozen=True, slots=True)
class Strike:
    number: int
    """From 0, in the order of the strikes."""
    kind: Kind
    pause_s: float
    """Between the recovery before it and the moment at which it looks for a victim."""
    pick: float
    """In [0, 1): which of the busy victims."""

    def choose(self, count: int) -> int:
        """The index of the victim among `count`."""
        return int(self.pick * count)


def draw(kills: int, seed: int, kinds: Sequence[Kind] = tuple(Kind)) -> tuple[Strike, ...]:
    """So many strikes, each kind at least `kills // len(kinds)` times; equal for equal arguments."""
    dice = random.Random(seed)
    whole, rest = divmod(kills, len(kinds))
    drawn = [*list(kinds) * whole, *dice.sample(list(kinds), rest)]
    dice.shuffle(drawn)
    return tuple(Strike(number, kind, dice.uniform(*PAUSE_S), dice.random()) for number, kind in enumerate(drawn))
