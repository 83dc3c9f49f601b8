"""Services that stay away are named, once, within a minute, and taken back; in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from ray.exceptions import ActorDiedError

from cluster.watch import watched_services
from coa.errors import ToolDown
from tests.support.virtual_time import in_virtual_time

Ask = Callable[[], Awaitable[object]]
Line = tuple[float, str]


def lines(ask: Callable[[float], Awaitable[object]], seconds: float) -> list[Line]:
    """What is said in that time of a service, which is asked at a time since the beginning."""

    async def main() -> list[Line]:
        clock, said = asyncio.get_running_loop().time, list[Line]()
        async with watched_services({"the site": lambda: ask(clock())}, lambda text: said.append((clock(), text))):
            await asyncio.sleep(seconds)
        return said

    return in_virtual_time(main())


async def hangs() -> None:
    await asyncio.Event().wait()


async def fails(error: Exception) -> None:
    raise error


async def answers() -> None:
    pass


def test_a_service_that_answers_is_not_mentioned() -> None:
    assert lines(lambda now: answers(), 600) == []


@pytest.mark.parametrize(
    ("away", "why"),
    [
        (hangs, "its process is stopped, or has not started"),
        (lambda: fails(ToolDown("port 80: in use")), "ToolDown: port 80: in use"),
        (lambda: fails(ActorDiedError()), "ActorDiedError: The actor died unexpectedly before finishing this task."),
    ],
)
def test_a_service_that_stays_away_is_named_once_within_a_minute(away: Ask, why: str) -> None:
    [(at, text)] = lines(lambda now: away(), 600)
    assert at < 60
    assert text == f"the site: no answer for {at:.0f} s ({why}); what needs it fails or waits"


def test_a_service_that_is_back_is_said_to_be() -> None:
    first, second = lines(lambda now: hangs() if 100 < now < 200 else answers(), 600)
    assert 100 < first[0] < 160
    assert 200 < second[0] < 240
    assert second[1].startswith("the site: answers again, after ")


def test_a_short_absence_is_not_mentioned() -> None:
    assert lines(lambda now: fails(ToolDown("starts")) if 100 < now < 120 else answers(), 600) == []


def test_a_defect_of_the_watch_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        lines(lambda now: fails(ZeroDivisionError()), 60)


def test_where_there_is_no_service_nothing_is_watched() -> None:
    async def main() -> None:
        async with watched_services({}, print):
            pass

    in_virtual_time(main())
