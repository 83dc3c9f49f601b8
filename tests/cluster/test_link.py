"""The health of an engine whose driver was suspended."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from cluster.health import Fault, Health, HealthConfig, State
from cluster.link import Changes, Link

LIMITS = HealthConfig(suspect_s=10.0, dead_s=25.0)
FIRST: dict[str, Callable[[Link], None]] = {
    "a check of the limits": lambda link: link.note(Health.tick),
    "an answer": lambda link: link.note(Health.answered, tokens=1, generating=1),
    "a sync": lambda link: link.note(Health.sync_began),
    "a sync that has ended": lambda link: link.note(Health.synced, 1),
    "a call that failed": lambda link: link.note(Health.raised, Fault.UNREACHABLE, "no answer"),
}


def link_at(clock: dict[str, float]) -> Link:
    link = Link(engine=Any, health=Health(began=0.0, limits=LIMITS), changes=Changes())  # pyright: ignore[reportArgumentType]
    link.now = lambda: clock["s"]
    link._looked_at = 0.0
    link.note(Health.came_up)
    clock["s"] = 1.0
    link.note(Health.answered, tokens=1, generating=1)
    return link


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_whatever_comes_first_after_a_suspension_does_not_end_the_engine(first: Callable[[Link], None]) -> None:
    async def course() -> None:
        clock = {"s": 0.0}
        link = link_at(clock)
        clock["s"] = 91.0
        first(link)
        assert link.health.state not in (State.DEAD, State.RETIRED)
        assert not link.over.done()

    asyncio.run(course())


def test_an_engine_that_gives_no_answer_while_it_is_looked_at_is_ended() -> None:
    async def course() -> None:
        clock = {"s": 0.0}
        link = link_at(clock)
        for second in range(2, 26):
            clock["s"] = float(second)
            link.note(Health.tick)
        assert link.health.state is State.SUSPECT
        clock["s"] = 27.0
        link.note(Health.tick)
        assert link.health.state is State.DEAD

    asyncio.run(course())
