"""What ranks are told to do: orders, in one row that every rank follows.

A batch from the driver becomes `Train`, with what belongs behind it, so that nobody waits for the driver in between:

    put(Train) ──► Train, Publish, Checkpoint (now and then, and after the last), Export (now and then), Stop (behind
                   the last one)

An order has a number in its epoch. A restart of the learners begins a new epoch, and voids what was ordered before.
"""

from collections.abc import Sequence
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
class Export:
    """Write the model as it is, beside the checkpoints."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Write the model and end: a normal end, whichever version it is."""


Order = Train | Publish | Checkpoint | Export | Stop


@dataclass(frozen=True, slots=True)
class Numbered:
    epoch: int
    number: int
    order: Order


def orders_of(
    train: Train, *, steps: int, publish: bool, checkpoint_every: int, export_every: int = 0
) -> tuple[Order, ...]:
    """What a batch entails. `steps`: the version at which the job ends; it is kept before the model is written, so that
    no step is trained again where that fails. export_every: 0 for no exports; the last version is the model itself."""
    version = train.version + 1
    orders: list[Order] = [train]
    if publish:
        orders.append(Publish())
    if version >= steps or version % checkpoint_every == 0:
        orders.append(Checkpoint())
    if export_every and version < steps and version % export_every == 0:
        orders.append(Export())
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


def share_of(rank: int, ranks: int, shares: int) -> int:
    """Index of a rank's share: where there are fewer shares than ranks, ranks next to one another have the same one."""
    return rank * shares // ranks


def _with_shares(order: Order, shares: Shares) -> Order:
    return replace(order, shares=shares) if isinstance(order, Train) else order
