"""Who is next to be given a place."""

import asyncio
from collections.abc import Sequence

import pytest

from actors.messages import EVALUATION
from cluster.places import Priorities, Queue
from coa.errors import NoEngine
from tests.support.virtual_time import in_virtual_time


def order_of(groups: Sequence[int]) -> list[int]:
    """In which order the arrivals would be given a place, by their numbers."""
    priorities = Priorities()
    arrived = [priorities.of(group) for group in groups]
    return sorted(range(len(groups)), key=lambda number: arrived[number])


def test_older_groups_are_first_and_within_a_group_whoever_came_first() -> None:
    assert order_of([7, 5, 7, 5, 6]) == [1, 3, 4, 0, 2]


def test_an_evaluation_goes_behind_the_groups_that_are_there_and_before_those_that_come() -> None:
    assert order_of([4, EVALUATION, 3, 4, 5, EVALUATION, 5, 6]) == [2, 0, 1, 3, 4, 5, 6, 7]
    assert order_of([EVALUATION] * 3) == [0, 1, 2]


class Free:
    """Places that are free; taking one occupies it."""

    def __init__(self) -> None:
        self.places: list[int] = []
        self.broken: Exception | None = None
        self.queue: Queue[int] = Queue(self.find)
        self.priorities = Priorities()
        self.served: list[int] = []

    def find(self) -> int | None:
        if self.broken is not None:
            raise self.broken
        return self.places[0] if self.places else None

    async def ask(self, group: int) -> None:
        place = await self.queue.take(self.priorities.of(group))
        self.places.remove(place)
        self.served.append(group)

    def free(self, *places: int) -> None:
        self.places += places
        self.queue.wake()


def test_a_place_goes_to_the_first_in_the_queue_and_the_next_one_to_the_second() -> None:
    async def go() -> None:
        free = Free()
        asking = {group: asyncio.ensure_future(free.ask(group)) for group in (3, 1, 2, 4)}
        await asyncio.sleep(1.0)
        free.free(1, 2)
        await asyncio.sleep(1.0)
        assert free.served == [1, 2]
        asking[5] = asyncio.ensure_future(free.ask(0))
        await asyncio.sleep(1.0)
        free.free(1)
        await asyncio.sleep(1.0)
        assert free.served == [1, 2, 0], "who comes later with an older group is first"
        asking[3].cancel()
        free.free(1)
        await asyncio.sleep(1.0)
        assert free.served == [1, 2, 0, 4]
        await asyncio.wait(asking.values())

    in_virtual_time(go())


def test_nobody_who_comes_just_when_a_place_is_free_goes_before_who_waited() -> None:
    async def go() -> None:
        free = Free()
        waiting = asyncio.ensure_future(free.ask(1))
        await asyncio.sleep(1.0)
        late = asyncio.ensure_future(free.ask(2))
        free.free(1)
        await asyncio.sleep(1.0)
        assert free.served == [1]
        late.cancel()
        await waiting

    in_virtual_time(go())


def test_everybody_who_waits_meets_what_is_wrong() -> None:
    async def go() -> None:
        free = Free()
        asking = [asyncio.ensure_future(free.ask(group)) for group in range(3)]
        await asyncio.sleep(1.0)
        free.broken = NoEngine("none")
        free.queue.wake()
        for one in asking:
            with pytest.raises(NoEngine):
                await one

    in_virtual_time(go())
