"""Orders to the learners' ranks: one queue that every rank follows.

A batch from the driver becomes `Train` and the orders that follow it, so that ranks do not wait for the driver in
between:

    put(Train) ──► Train, Publish, Checkpoint (now and then, and after the last), Export (now and then), Stop (behind
                   the last one)

An order has a number in its epoch. A restart of the learners begins a new epoch and voids all earlier orders.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coa.errors import InfrastructureError

Shares = tuple[tuple[Any, ...], ...]
"""References to tuples of samples, for each sequence group (each rank if `sequence_parallel` is 1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """Train one batch."""

    version: int
    """Weight version before the batch; training produces version + 1."""
    shares: Shares
    cursor: Any
    """Position in the stream of tasks or demonstrations when this batch was formed, as plain data; saved in the
    checkpoint."""


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish the current weights."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Save the current state; all ranks report."""


@dataclass(frozen=True, slots=True)
class Export:
    """Write the model as it is, beside the checkpoints."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Write the model and end normally, at any version."""


Order = Train | Publish | Checkpoint | Export | Stop


@dataclass(frozen=True, slots=True)
class Numbered:
    epoch: int
    number: int
    order: Order


def orders_of(
    train: Train, *, steps: int, publish: bool, checkpoint_every: int, export_every: int = 0
) -> tuple[Order, ...]:
    """Returns the orders that a batch entails. `steps`: the version at which the job ends; it is kept before the model
    is written, so that no step is trained again where that fails. export_every: 0 for no exports; the last version is
    the model itself."""
    version = train.version + 1
    orders: list[Order] = [train]
    if publish:
        orders.append(Publish())
    if has_checkpoint(version, steps=steps, checkpoint_every=checkpoint_every):
        orders.append(Checkpoint())
    if export_every and version < steps and version % export_every == 0:
        orders.append(Export())
    if version >= steps:
        orders.append(Stop())
    return tuple(orders)


def has_checkpoint(version: int, *, steps: int, checkpoint_every: int) -> bool:
    """Whether there is a checkpoint of the version. steps: the last one."""
    return version >= steps or version % checkpoint_every == 0


class VoidEpoch(InfrastructureError):
    """A rank from before a restart of the learners asks for orders."""


@dataclass
class OrderRow:
    """The orders of the current epoch, and the progress of each rank. Pure."""

    ranks: int
    epoch: int = 0
    """Epoch of the last start; before the first start, a number that no rank uses."""
    orders: list[Order] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    """For each rank, the number of the last order that it asked for."""
    cleared: int = 0
    """Number of orders whose samples are no longer needed by any rank."""

    def begin(self) -> int:
        """Begins a new epoch without any orders; returns its number."""
        self.epoch += 1
        self.orders.clear()
        self.asked = [-1] * self.ranks
        self.cleared = 0
        return self.epoch

    def add(self, orders: Sequence[Order], epoch: int) -> bool:
        """Appends orders; returns False, without taking them, if the learners have restarted since that epoch."""
        if epoch != self.epoch or not self.asked:
            return False
        self.orders.extend(orders)
        return True

    def has_room(self) -> bool:
        """Whether some rank has asked for every batch so far: one batch is prepared while another is trained."""
        furthest = max(self.asked, default=-1)
        return not any(isinstance(order, Train) for order in self.orders[furthest + 1 :])

    def ask(self, rank: int, epoch: int, number: int) -> Numbered | None:
        """Order `number`, or None if it does not exist yet; raises VoidEpoch for an older epoch."""
        self.require(epoch)
        self.asked[rank] = max(self.asked[rank], number)
        while self.cleared < min(*self.asked, len(self.orders)):
            # All ranks are past this order, so its samples can be released.
            self.orders[self.cleared] = _with_shares(self.orders[self.cleared], ())
            self.cleared += 1
        return Numbered(epoch, number, self.orders[number]) if number < len(self.orders) else None

    def checkpoint(self) -> int | None:
        """Puts a checkpoint before the next batch that no rank has asked for, unless there is one of the version that
        learners have then. Returns that version; None if they have trained nothing in this epoch."""
        furthest = max(self.asked, default=-1)
        later = (at for at in range(furthest + 1, len(self.orders)) if isinstance(self.orders[at], Train))
        place = next(later, len(self.orders))
        for at in reversed(range(place)):
            match self.orders[at]:
                case Train(version=version):
                    self.orders.insert(place, Checkpoint())
                    return version + 1
                case Checkpoint():
                    return next(one.version + 1 for one in reversed(self.orders[:at]) if isinstance(one, Train))
                case Stop():
                    return None
                case _:
                    pass
        return None

    def training(self) -> dict[int, int]:
        """For each rank that is within a step, the version that the step makes."""
        orders = {rank: self.orders[at] for rank, at in enumerate(self.asked) if 0 <= at < len(self.orders)}
        return {rank: order.version + 1 for rank, order in orders.items() if isinstance(order, Train)}

    def require(self, epoch: int) -> None:
        """Raises VoidEpoch for an older epoch."""
        if epoch != self.epoch:
            raise VoidEpoch(f"epoch {epoch} is over: this is epoch {self.epoch}")

    def for_rank(self, numbered: Numbered, rank: int) -> Numbered:
        """The order with only this rank's share."""
        order = numbered.order
        if not isinstance(order, Train):
            return numbered
        own = share_of(rank, self.ranks, len(order.shares))
        shares = tuple(share if at == own else () for at, share in enumerate(order.shares))
        return replace(numbered, order=_with_shares(order, shares))


@dataclass
class RankProgress:
    """Heartbeats of the ranks of the present epoch, so that one that hangs is named: the others wait
    for it in a collective, as busy as it is. Pure: times are given."""

    moved: float = 0.0
    """When a rank was last known to get further."""
    last_seen: dict[int, float] = field(default_factory=dict)
    """When each rank said something last."""
    passes: dict[int, int] = field(default_factory=dict)
    """Forward passes that each has begun."""

    def begin(self, now: float) -> None:
        """A new epoch, or the end of an old one: of other processes nothing is known."""
        self.moved = now
        self.last_seen.clear()
        self.passes.clear()

    def heartbeat(self, rank: int, passes: int, now: float) -> None:
        if passes != self.passes.get(rank):
            self.moved = now
        self.last_seen[rank], self.passes[rank] = now, passes

    def stalled(self, training: Mapping[int, int], now: float, limit_s: float) -> str:
        """The ranks that keep the others waiting, in a sentence; empty if there are none.

        training: of each rank that is within a step, the version that the step makes.
        """
        silent_s = limit_s / 2  # who is stopped is known before all have waited for it
        if silent := [rank for rank, at in sorted(self.last_seen.items()) if now - at >= silent_s]:
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
    """Index of a rank's share: if there are fewer shares than ranks, neighboring ranks have the same share."""
    return rank * shares // ranks


def _with_shares(order: Order, shares: Shares) -> Order:
    return replace(order, shares=shares) if isinstance(order, Train) else order
