"""The staleness window: how many groups may be played at a time, and which groups have to be trained next.

Two rules bound the staleness of every trained token by `max_staleness`, without dropping any group for its age.

Admission. With B groups per batch, at most (max_staleness + live + 1) B groups may have been admitted in all while the
engines run version `live`; fewer where learners do not need as many (`RunAhead`). A zero-variance group frees its slot
(dynamic sampling), a limited number of times per batch.

Deadline. A group that was admitted under version s must be in a batch trained at version s + max_staleness or
before. Batches take the oldest finished groups, and only if all remaining groups can still meet their deadlines at
B per batch; otherwise the learner waits for the old groups. With max_staleness = 0 both rules together are the
synchronous trainer.

With max_staleness = 0, `spares` more groups may be admitted beside those of a batch, to take the places of groups that
nothing can be learnt from (over-sampling). A batch is still the first groups of those admitted, however long they take:
with the first ones that are finished, long episodes would be left out.

Admission makes the deadlines possible: when version s went live, at most (max_staleness + s) B groups had been
admitted under older versions, all due by version s - 1 + max_staleness, at B per batch.
"""

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coa.bounds import AtLeast1

RESERVE = 1
"""Batches that should lie ready beside the one that learners begin."""


@dataclass(frozen=True)
class WindowConfig:
    """Bound of staleness, and batch size in groups."""

    max_staleness: int = 2
    """Maximum staleness of a trained token, in weight versions. 0 makes training synchronous."""
    groups_per_batch: AtLeast1 = 64
    """Groups per batch; a group is the episodes of one task."""
    max_refills: int = 2
    """How many uninformative groups may be replaced per batch, in batches: 2 allows twice `groups_per_batch`. If more
    are uninformative, the batch is smaller."""
    spares: int = 0
    """Groups that are played in advance, for the case that others are uninformative (over-sampling with early stop).
    When the batch is full, those that it does not need are cancelled, and their tasks are issued again. Needs
    `max_staleness=0`: otherwise the groups of later batches are under way anyway."""

    def __post_init__(self) -> None:
        if self.spares and self.max_staleness:
            raise ValueError(f"spares is {self.spares}, expected 0, or max_staleness=0")


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to run one group."""

    group: int
    version: int
    """The engines' version at admission: no token of the group is of an older version."""


def choose(
    running: Mapping[int, int], ready: Mapping[int, int], version: int, config: WindowConfig
) -> list[int] | None:
    """The groups of the batch trained at `version`, oldest first, or None if the learner has to wait.

    `running` and `ready` map a group to the version it was admitted under.
    """
    size, slack = config.groups_per_batch, config.max_staleness
    picked = sorted(ready, key=lambda group: (ready[group], group))[:size]
    if len(picked) < size:
        return None
    taken = set(picked)
    left = [started for group, started in ready.items() if group not in taken] + list(running.values())
    for later in range(slack + 1):
        due = sum(started + slack <= version + later for started in left)
        if due > later * size:
            return None
    return picked


class RunAhead:
    """Decides how far engines run ahead of learners within the window, from the finished groups that learners find.

    Where learners are the slower half, finished groups would wait for them until the window is full, and every sample
    would be as stale as the window allows. That buys nothing: learners are as busy with one batch in reserve as with
    four. So engines begin with one batch in reserve. As soon as learners find less than a batch, engines may use the
    whole window; and what has then lain in reserve beyond one batch for a whole window of versions is no longer
    admitted ahead.
    """

    def __init__(self, groups_per_batch: int, max_staleness: int) -> None:
        self._size = groups_per_batch
        self._reserve = RESERVE * groups_per_batch
        self._most = max_staleness * groups_per_batch
        self._surplus: deque[int] = deque(maxlen=max_staleness + 1)
        self.held_back = max(0, self._most - self._reserve)
        """Groups fewer than the window allows that may be admitted. With at most `max_staleness` batches held back,
        the window of the synchronous trainer remains, in which each batch can still be filled."""

    def begin_batch(self, stock: int) -> None:
        """Learners begin a batch. stock: finished groups, the batch's own included."""
        if stock < self._size:
            self.held_back = 0
            self._surplus.clear()
            return
        self._surplus.append(stock - self._size - self._reserve)
        if len(self._surplus) == self._surplus.maxlen and min(self._surplus) > 0:
            self.held_back = min(self._most, self.held_back + min(self._surplus))
            self._surplus.clear()  # all were counted before this took effect


class Window:
    """Tracks groups for the two rules, without a clock and without actors: its methods record what happened, or return
    what may happen next."""

    def __init__(self, config: WindowConfig, *, version: int, batches: int, first_group: int = 0) -> None:
        """Starts with engines and learner at `version`; `batches` is the version at which the run ends."""
        self.config = config
        self.live = version
        """Version that every engine runs."""
        self.version = version
        """Version at which the next batch is trained."""
        self._batches = batches
        self._next_group = first_group
        self._running: dict[int, int] = {}
        self._ready: dict[int, int] = {}
        self._blank: set[int] = set()
        """Zero-variance groups that keep their place in a batch."""
        self._refills = 0
        self._ahead = RunAhead(config.groups_per_batch, config.max_staleness)

    @property
    def next_group(self) -> int:
        return self._next_group

    def room(self) -> int:
        """Groups that may be admitted now."""
        size = self.config.groups_per_batch
        limit = (self.config.max_staleness + self.live + 1) * size + self._spares() - self._ahead.held_back
        # Spare groups are issued again, so there are never more groups than all batches take.
        return max(min(limit - self._batches * size, 0) + self.room_to_end(), 0)

    def room_to_end(self) -> int:
        """Groups that may be admitted until the run ends, unless more slots are freed."""
        return (self._batches - self.version) * self.config.groups_per_batch - len(self._running) - len(self._ready)

    def _spares(self) -> int:
        """Groups that may be under way besides those of the batch: no more than the batch may still refill."""
        if self.version != self.live:
            return 0
        return min(self.config.spares, self.config.max_refills * self.config.groups_per_batch - self._refills)

    def admit(self) -> Ticket:
        if self.room() <= 0:
            raise ValueError("the window is full")
        ticket = Ticket(self._next_group, self.live)
        self._next_group += 1
        self._running[ticket.group] = ticket.version
        return ticket

    def finish(self, group: int) -> None:
        """The group has been played and is to be trained."""
        self._ready[group] = self._running.pop(group)

    def drop(self, group: int) -> bool:
        """Nothing can be learnt from the group. Returns whether its slot is free again; if not, its batch is one group
        smaller."""
        if self._refills < self.config.max_refills * self.config.groups_per_batch:
            self._refills += 1
            del self._running[group]
            return True
        self._blank.add(group)
        self.finish(group)
        return False

    def fail(self, group: int) -> None:
        """The group had an infrastructure failure; its slot is free for another try."""
        del self._running[group]

    def take(self) -> list[int] | None:
        """The groups of the next batch without those that nothing can be learnt from, or None while it has to wait."""
        picked = choose(*self._without_spares(), self.version, self.config)
        if picked is None or self.version >= self._batches:
            return None
        for group in picked:
            del self._ready[group]
        self.version += 1
        self._refills = 0
        kept = [group for group in picked if group not in self._blank]
        self._blank.difference_update(picked)
        return kept

    def _without_spares(self) -> tuple[Mapping[int, int], Mapping[int, int]]:
        """The running groups and the ready ones that the next batch is chosen from."""
        if not self.config.spares:
            return self._running, self._ready
        first = set(sorted(self.outstanding())[: self.config.groups_per_batch])
        running = {group: at for group, at in self._running.items() if group in first}
        return running, {group: at for group, at in self._ready.items() if group in first}

    def stop_spares(self) -> list[int]:
        """Removes the groups that no batch will take any more, and returns them."""
        if not self.config.spares or self.version <= self.live:
            return []
        stopped = sorted(self.outstanding())
        self._running.clear()
        self._ready.clear()
        self._blank.clear()
        return stopped

    def waits_for_old(self) -> bool:
        """Whether enough groups are ready for a batch, so that only a deadline of older groups holds it back."""
        return len(self._ready) >= self.config.groups_per_batch

    def trained(self, version: int) -> None:
        """The learners have made `version` and begin the next batch, if one is ready."""
        self._ahead.begin_batch((self.version - version) * self.config.groups_per_batch + len(self._ready))

    def publish(self, version: int) -> None:
        """Every engine now runs `version`."""
        if version < self.live:
            raise ValueError(f"engines went from version {self.live} back to {version}")
        self.live = version

    def outstanding(self) -> Collection[int]:
        return [*self._running, *self._ready]

    @property
    def running(self) -> int:
        """Number of groups that are being played."""
        return len(self._running)

    @property
    def ready(self) -> int:
        """Number of groups that wait for their batch."""
        return len(self._ready)
