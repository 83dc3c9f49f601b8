"""Limits of an endpoint, in made-up time: never above them, never idle without need, first come first served."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.llm.limits import WINDOW_S, Limiter, Limits, Window
from tests.support.virtual_time import in_virtual_time


@dataclass(frozen=True)
class Request:
    arrives: int
    lasts: float
    estimated: int
    took: int | None


def played(limits: Limits, requests: Sequence[Request]) -> list[float]:
    """When each request started."""

    async def go() -> list[float]:
        loop = asyncio.get_running_loop()
        limiter = Limiter(limits)
        started = [math.nan] * len(requests)

        async def ask(number: int, request: Request) -> None:
            permit = await limiter.start(request.estimated)
            started[number] = loop.time()
            await asyncio.sleep(request.lasts)
            limiter.end(permit, request.took)

        tasks = []
        for number, request in enumerate(requests):
            await asyncio.sleep(request.arrives - loop.time())
            tasks.append(asyncio.create_task(ask(number, request)))
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert (limiter.running, limiter.waiting) == (0, 0)
        return started

    return in_virtual_time(go(), 1e9)


def counted(limits: Limits, request: Request, start: float, at: float) -> int:
    """Tokens that a request which started at `start` counts for at `at`."""
    if request.took is not None and at >= start + request.lasts < start + WINDOW_S:
        return request.took
    return min(request.estimated, limits.tokens_per_minute)


def earliest(limits: Limits, requests: Sequence[Request]) -> list[float]:
    """When each could start at the earliest, if nobody overtakes: by trying every moment at which anything changes."""
    starts: list[float] = []
    for request in requests:
        before = list(zip(requests, starts, strict=False))
        changes = {request.arrives, *(start + WINDOW_S for start in starts), *(s + one.lasts for one, s in before)}
        for at in sorted(changes):
            if at < request.arrives or (starts and at < starts[-1]):
                continue
            window = [(one, start) for one, start in before if start > at - WINDOW_S]
            running = sum(start + one.lasts > at for one, start in before)
            tokens = sum(counted(limits, one, start, at) for one, start in window)
            share = min(request.estimated, limits.tokens_per_minute)
            if (
                (not limits.concurrent or running < limits.concurrent)
                and (not limits.requests_per_minute or len(window) < limits.requests_per_minute)
                and (not limits.tokens_per_minute or not window or tokens + share <= limits.tokens_per_minute)
            ):
                starts.append(at)
                break
    return starts


def apart(requests: list[Request]) -> list[Request]:
    """Nothing ends in the moment in which something else leaves the window: either order would be right there."""
    return [replace(one, lasts=one.lasts + 2.0 ** -(n + 5)) for n, one in enumerate(requests)]


REQUESTS = st.lists(
    st.builds(
        Request,
        arrives=st.integers(0, 150),
        lasts=st.integers(1, 90),
        estimated=st.integers(0, 120),
        took=st.none() | st.integers(0, 150),
    ),
    max_size=25,
).map(lambda requests: apart(sorted(requests, key=lambda request: request.arrives)))
LIMITS = st.builds(
    Limits,
    concurrent=st.integers(0, 4),
    requests_per_minute=st.integers(0, 5),
    tokens_per_minute=st.integers(0, 200),
)


@settings(deadline=None, max_examples=150)
@given(LIMITS, REQUESTS)
def test_each_starts_in_its_turn_as_early_as_the_limits_allow(limits: Limits, requests: list[Request]) -> None:
    assert played(limits, requests) == earliest(limits, requests)


@settings(deadline=None)
@given(LIMITS, REQUESTS)
def test_no_minute_and_no_moment_holds_more_than_allowed(limits: Limits, requests: list[Request]) -> None:
    honest = [
        Request(one.arrives, one.lasts, min(one.estimated, limits.tokens_per_minute), None if one.took is None else 0)
        for one in requests
    ]
    starts = played(limits, honest)
    for at in starts:
        window = [one for one, start in zip(honest, starts, strict=True) if at - WINDOW_S < start <= at]
        running = sum(start <= at < start + one.lasts for one, start in zip(honest, starts, strict=True))
        assert not limits.concurrent or running <= limits.concurrent
        assert not limits.requests_per_minute or len(window) <= limits.requests_per_minute
        known = sum(one.estimated for one in window if one.took is None)
        assert not limits.tokens_per_minute or known <= limits.tokens_per_minute


def test_a_minute_is_full_until_its_first_start_has_left_it() -> None:
    window = Window(Limits(requests_per_minute=2))
    window.start(0.0, 0)
    window.start(10.0, 0)
    assert [window.wait_s(now, 0) for now in (10.0, 59.0, 60.0)] == [50.0, 1.0, 0.0]


def test_tokens_are_reserved_and_then_put_right() -> None:
    window = Window(Limits(tokens_per_minute=100))
    permit = window.start(0.0, 90)
    assert window.wait_s(1.0, 20) == 59.0
    window.end(permit, took=80)
    assert window.wait_s(1.0, 20) == 0.0
    window.end(window.start(1.0, 20), took=None)
    assert window.wait_s(2.0, 1) == 58.0


def test_what_is_known_of_a_start_that_left_the_window_changes_nothing() -> None:
    window = Window(Limits(tokens_per_minute=100))
    permit = window.start(0.0, 90)
    assert window.wait_s(60.0, 100) == 0.0
    window.end(permit, took=70)
    assert window.wait_s(60.0, 100) == 0.0


def test_a_request_above_the_limit_of_tokens_goes_alone() -> None:
    assert played(Limits(tokens_per_minute=100), [Request(0, 1, 500, None), Request(1, 1, 10, None)]) == [0.0, 60.0]
    assert played(Limits(tokens_per_minute=100), [Request(0, 1, 10, None), Request(1, 1, 500, None)]) == [0.0, 60.0]


@pytest.mark.parametrize("cancelled", ["first in line", "in the middle", "whose turn has come"])
def test_who_gives_up_gives_back_the_place(cancelled: str) -> None:
    async def go() -> list[str]:
        limiter = Limiter(Limits(concurrent=1, requests_per_minute=3, tokens_per_minute=100))
        order: list[str] = []
        holder = await limiter.start(40)

        async def ask(name: str, tokens: int) -> None:
            permit = await limiter.start(tokens)
            order.append(name)
            limiter.end(permit, tokens)

        tasks = [asyncio.create_task(ask(name, 30)) for name in "abc"]
        await asyncio.sleep(0)
        match cancelled:
            case "first in line":
                tasks[0].cancel()
            case "in the middle":
                tasks[1].cancel()
            case _:
                limiter.end(holder, 40)
                tasks[0].cancel()
        if cancelled != "whose turn has come":
            limiter.end(holder, 40)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert asyncio.get_running_loop().time() == 0.0
        assert (limiter.running, limiter.waiting) == (0, 0)
        return order

    assert in_virtual_time(go(), 1e9) == {"in the middle": ["a", "c"]}.get(cancelled, ["b", "c"])


def test_a_place_that_many_gave_up_waiting_for_goes_to_who_stayed() -> None:
    async def go() -> tuple[int, int, float]:
        limiter = Limiter(Limits(tokens_per_minute=100))
        limiter.end(await limiter.start(60), None)
        large = asyncio.create_task(limiter.start(90))
        small = asyncio.create_task(limiter.start(40))
        await asyncio.sleep(5)
        assert (large.done(), small.done(), limiter.waiting) == (False, False, 2)
        large.cancel()
        await small
        return limiter.running, limiter.waiting, asyncio.get_running_loop().time()

    assert in_virtual_time(go(), 1e9) == (1, 0, 5.0)


def test_a_pause_holds_for_all_who_have_not_started() -> None:
    async def go() -> list[float]:
        limiter = Limiter(Limits(concurrent=2))
        loop = asyncio.get_running_loop()
        started: list[float] = []

        async def ask() -> None:
            permit = await limiter.start(0)
            started.append(loop.time())
            await asyncio.sleep(1)
            limiter.end(permit)

        first = [asyncio.create_task(ask()) for _ in range(4)]
        await asyncio.sleep(0.5)
        limiter.pause(7)
        limiter.pause(3)
        await asyncio.gather(*first, ask())
        return started

    assert in_virtual_time(go(), 1e9) == [0.0, 0.0, 7.5, 7.5, 8.5]
