"""What ranks are told to do: orders, in one row that every rank follows.

A batch from the driver becomes `Train`, with what belongs behind it, so that nobody waits for the driver in between:

    put(Train) ──► Train, Publish, Checkpoint (now and then, and after the last), Stop (behind the last one)

An order has a number in its epoch. A restart of the learners begins a new epoch, and voids what was ordered before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coa.errors import InfrastructureError

Shares = tuple[tuple[Any, ...], ...]
"""For each group of ranks that share rows, and so for each rank where none does, references to tuples of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Train one batch."""

    version: int
    """The version that it is trained at; it makes version + 1."""
    shares: Shares
    cursor: Any
    """Where the stream of tasks or demonstrations stood when this batch was formed, as plain data: kept with the
    checkpoint."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the weights as they are."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Keep the state as it is; all ranks report."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Write the model and end: a normal end, whichever version it is."""


Order = Train | Publish | Checkpoint | Stop


@dataclass(frozen=True, slots=True)
class Numbered:
    epoch: int
    number: int
    order: Order


def orders_of(train: Train, *, steps: int, publish: bool, checkpoint_every: int) -> tuple[Order, ...]:
    """What a batch entails. `steps`: the version at which the job ends; it is kept before the model is written, so that
    no step is trained again where that fails."""
    version = train.version + 1
    orders: list[Order] = [train]
    if publish:
        orders.append(Publish())
    if version >= steps or version % checkpoint_every == 0:
        orders.append(Checkpoint())
    if version >= steps:
        orders.append(Stop())
    return tuple(orders)


class VoidEpoch(InfrastructureError):
    """A rank of learners that have been started again asks for orders."""


@dataclass
class OrderRow:
    """The orders of the present epoch, and how far ranks have come. Pure."""

    ranks: int
    epoch: int = 0
    """Of the last start; what it is before the first one, nobody knows."""
    orders: list[Order] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    """For each rank, the number of the order that it has asked for last."""
    cleared: int = 0
    """Orders whose samples nobody needs any more."""

    def begin(self) -> int:
        """A new epoch without any orders; its number."""
        self.epoch += 1
        self.orders.clear()
        self.asked = [-1] * self.ranks
        self.cleared = 0
        return self.epoch

    def add(self, orders: Sequence[Order], epoch: int) -> bool:
        """False where the learners have restarted since that epoch: the orders are not taken."""
        if epoch != self.epoch or not self.asked:
            return False
        self.orders.extend(orders)
        return True

    def has_room(self) -> bool:
        """Whether no batch waits that no rank has asked for: one batch is prepared while another is trained."""
        furthest = max(self.asked, default=-1)
        return not any(isinstance(order, Train) for order in self.orders[furthest + 1 :])

    def ask(self, rank: int, epoch: int, number: int) -> Numbered | None:
        """Order `number` of a rank, None while there is none; raises VoidEpoch for an older epoch."""
        self.require(epoch)
        self.asked[rank] = max(self.asked[rank], number)
        while self.cleared < min(*self.asked, len(self.orders)):
            # All ranks are past it: nobody needs its samples any more.
            self.orders[self.cleared] = _with_shares(self.orders[self.cleared], ())
            self.cleared += 1
        return Numbered(epoch, number, self.orders[number]) if number < len(self.orders) else None

    def training(self) -> dict[int, int]:
        """Of each rank that is within a step, the version that the step makes."""
        orders = {rank: self.orders[at] for rank, at in enumerate(self.asked) if 0 <= at < len(self.orders)}
        return {rank: order.version + 1 for rank, order in orders.items() if isinstance(order, Train)}

    def require(self, epoch: int) -> None:
        """Raises VoidEpoch for an older epoch."""
        if epoch != self.epoch:
            raise VoidEpoch(f"epoch {epoch} is over: this is epoch {self.epoch}")

    def for_rank(self, numbered: Numbered, rank: int) -> Numbered:
        """With this rank's share alone."""
        order = numbered.order
        if not isinstance(order, Train):
            return numbered
        own = share_of(rank, self.ranks, len(order.shares))
        shares = tuple(share if at == own else () for at, share in enumerate(order.shares))
        return replace(numbered, order=_with_shares(order, shares))


@dataclass
class RankProgress:
    """What ranks of the present epoch say of themselves now and then, so that one that hangs is named: the others wait
    for it in a collective, as busy as it is. Pure: times are given."""

    moved: float = 0.0
    """When a rank was last known to get further."""
    heard: dict[int, float] = field(default_factory=dict)
    """When each rank said something last."""
    passes: dict[int, int] = field(default_factory=dict)
    """Forward passes that each has begun."""

    def begin(self, now: float) -> None:
        """A new epoch: of other processes nothing is known."""
        self.moved = now
        self.heard.clear()
        self.passes.clear()

    def hear(self, rank: int, passes: int, now: float) -> None:
        if passes != self.passes.get(rank):
            self.moved = now
        self.heard[rank], self.passes[rank] = now, passes

    def stalled(self, training: Mapping[int, int], now: float, limit_s: float) -> str:
        """The ranks that keep the others waiting, in a sentence; empty if there are none.

        training: of each rank that is within a step, the version that the step makes.
        """
        silent_s = limit_s / 2  # who is stopped is known before all have waited for it
        if silent := [rank for rank, at in sorted(self.heard.items()) if now - at >= silent_s]:
            return f"{_ranks(silent)} gave no sign of life for more than {silent_s:.0f} s"
        busy = {rank: self.passes[rank] for rank in training if rank in self.passes}
        if not busy or now - self.moved < limit_s:
            return ""
        last = [rank for rank, passes in sorted(busy.items()) if passes == min(busy.values())]
        step = max(training.values())
        return f"{_ranks(last)} did not finish step {step}: no forward pass began for more than {limit_s:.0f} s"


def _ranks(ranks: Sequence[int]) -> str:
    return f"learner rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def share_of(rank: int, ranks: int, shares: int) -> int:
    """Index of a rank's share: where there are fewer shares than ranks, ranks next to one another have the same one."""
    return rank * shares // ranks


def _with_shares(order: Order, shares: Shares) -> Order:
    return replace(order, shares=shares) if isinstance(order, Train) else order
