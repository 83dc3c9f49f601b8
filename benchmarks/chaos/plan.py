"""Draws which parts of a run are struck, and in which order, from a seed. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

PAUSE_S = (5.0, 20.0)
"""Minimum and maximum seconds between a recovery and the next strike."""
STOP_S = 60.0
"""Seconds for which a stopped process stays stopped."""


class Part(StrEnum):
    """A process of a run, or a group of processes."""

    engine = "engine"
    """The actor of a rollout engine."""
    core = "core"
    """The process of an engine in which vLLM computes."""
    tools = "tools"
    """A tool executor."""
    teacher = "teacher"
    """The team of the teacher fallback."""
    buffer = "buffer"
    """The buffer between driver and learners."""
    rank = "rank"
    """A rank of the learners."""
    controller = "controller"
    """Ray Train's controller of the learners."""
    directory = "directory"
    """The directory of the published weights."""
    holder = "holder"
    """The holder of the published weights on one node."""
    dispatcher = "dispatcher"
    """The dispatcher between engines and tool executors."""
    site = "site"
    """The pages that the tools of a world search and open."""
    node = "node"
    """A node of the cluster, with all of its processes."""
    driver = "driver"
    """The command that trains."""


WAITING = frozenset({Part.controller, Part.directory, Part.holder, Part.dispatcher, Part.site})
"""Parts that work for a moment now and then, and are always taken for busy."""


class Kind(StrEnum):
    """What is done to a part: killed, or stopped for STOP_S."""

    engine = "engine"
    core = "core"
    tools = "tools"
    teacher = "teacher"
    buffer = "buffer"
    rank = "rank"
    controller = "controller"
    directory = "directory"
    holder = "holder"
    dispatcher = "dispatcher"
    site = "site"
    node = "node"
    driver = "driver"
    stop_engine = "stop_engine"
    stop_rank = "stop_rank"
    stop_driver = "stop_driver"

    @property
    def stops(self) -> bool:
        return self in (Kind.stop_engine, Kind.stop_rank, Kind.stop_driver)

    @property
    def part(self) -> Part:
        return Part(self.value.removeprefix("stop_"))


@dataclass(frozen=True, slots=True)
class Strike:
    number: int
    """Position in the order of strikes, from 0."""
    kind: Kind
    pause_s: float
    """Seconds between the previous recovery and the search for a victim."""
    pick: float
    """Selects one of the possible victims; in [0, 1)."""

    def choose(self, count: int) -> int:
        """The index of the victim among `count`."""
        return int(self.pick * count)


def draw(
    kills: int, seed: int, kinds: Sequence[Kind] = tuple(Kind), *, pause_s: Sequence[float] = PAUSE_S
) -> tuple[Strike, ...]:
    """`kills` strikes, each kind at least `kills // len(kinds)` times; equal for equal arguments."""
    dice = random.Random(seed)
    whole, rest = divmod(kills, len(kinds))
    drawn = [*list(kinds) * whole, *dice.sample(list(kinds), rest)]
    dice.shuffle(drawn)
    return tuple(Strike(number, kind, dice.uniform(*pause_s), dice.random()) for number, kind in enumerate(drawn))
