"""How many tool executors a run wants, on made-up traces."""

import math
from collections.abc import Iterator
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coa.tools.scaling import ExecutorController, ToolScaling

CONFIG = ToolScaling(slack=0.7, look_back_s=20.0, cooldown_s=60.0)
PLACES = {"search": 10, "crawl": 4}
Load = dict[str, int]


def controller(executors: int = 1, least: int = 1, most: int = 8) -> ExecutorController:
    return ExecutorController(CONFIG, PLACES.__getitem__, least=least, most=most, executors=executors)


def split(calls: Load, executors: int) -> tuple[Load, Load]:
    """Those that run on so many executors, and those that wait."""
    running = {tool: min(number, PLACES[tool] * executors) for tool, number in calls.items()}
    return running, {tool: number - running[tool] for tool, number in calls.items()}


def follow(control: ExecutorController, trace: Iterator[Load] | list[Load]) -> list[int]:
    """The number after each second of a trace of calls; executors come and go at once."""
    return [control.look(float(at), *split(calls, control.wished)).executors for at, calls in enumerate(trace)]


def test_calls_that_wait_bring_executors_by_doubling_up_to_the_maximum() -> None:
    found = follow(controller(most=6), [{"search": 100}] * 100)
    assert sorted(set(found)) == [1, 2, 4, 6]
    assert found[19] == 1
    assert found[20] == 2
    assert found[-1] == 6


def test_the_tool_that_needs_most_counts() -> None:
    assert follow(controller(), [{"search": 10, "crawl": 12}] * 100)[-1] == 3
    assert follow(controller(), [{"search": 30, "crawl": 4}] * 100)[-1] == 3


def test_executors_that_are_just_full_are_enough() -> None:
    assert set(follow(controller(2), [{"search": 20, "crawl": 8}] * 200)) == {2}


def test_bursts_shorter_than_the_average_change_nothing() -> None:
    trace = [{"search": 40 if second % 60 < 4 else 2} for second in range(600)]
    assert set(follow(controller(), trace)) == {1}


def test_idle_executors_go_by_halves_down_to_the_minimum() -> None:
    found = follow(controller(8, least=2), [{"search": 0}] * 300)
    assert sorted(set(found), reverse=True) == [8, 4, 2]
    assert found[-1] == 2


def test_slow_tools_keep_the_executors_that_run_them() -> None:
    """Calls of minutes, that begin after an idle time: fewer than they fill are never wanted."""
    control = controller(6)
    follow(control, [{"crawl": 0}] * 19)
    for second in range(19, 60):
        running = {"crawl": 20}
        assert control.look(float(second), running, {}).executors >= math.ceil(20 / PLACES["crawl"])


def test_a_load_between_two_numbers_turns_ever_later() -> None:
    trace = [{"search": 14 if second // 100 % 2 == 0 else 1} for second in range(6000)]
    found = follow(controller(), trace)
    turns = [at for at, (before, after) in enumerate(pairwise(found)) if before != after]
    assert len(turns) < 60 / 2, "without a cool-down that grows there would be one for each of 60 changes of load"
    assert min(later - earlier for earlier, later in pairwise(turns)) >= CONFIG.cooldown_s


@given(
    st.lists(st.tuples(st.integers(1, 90), st.integers(0, 120), st.integers(0, 60)), max_size=40),
    st.integers(1, 3),
    st.integers(0, 6),
)
def test_the_number_is_in_its_bounds_enough_for_what_runs_and_turns_once_in_a_cool_down(
    spans: list[tuple[int, int, int]], least: int, more: int
) -> None:
    control = controller(least, least, least + more)
    trace = [{"search": a, "crawl": b} for seconds, a, b in spans for _ in range(seconds)]
    turned, direction = -math.inf, 0
    for at, calls in enumerate(trace):
        before = control.wished
        running, waiting = split(calls, before)
        now = control.look(float(at), running, waiting).executors
        assert least <= now <= least + more
        assert now >= before or all(number <= PLACES[tool] * now for tool, number in running.items())
        if step := now - before:
            if step * direction < 0:
                assert at - turned >= CONFIG.cooldown_s
            turned, direction = at, step
