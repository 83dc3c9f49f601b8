"""What the terminal says while learners wait for a batch."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from coa.config import known_keys
from coa.errors import ToolDown
from jobs.recipe.schema import Recipe
from jobs.run.console import Stage
from jobs.stages.reinforcement.waits import (
    ADVICE,
    ALIKE,
    ALL_RIGHT,
    ALL_WRONG,
    NOTHING,
    SLOW,
    LoopCounts,
    Waits,
    alike,
)
from tests.support.engines import FakeTools, FakeWorld
from tests.support.rl_loop import make_run, reinforce
from tests.support.virtual_time import in_virtual_time

COUNTS = LoopCounts(serving=2, joining=0, ready=1, running=7, batch=4)


@dataclass(frozen=True)
class Told:
    correct: bool


def waits(*dropped: str, played: int = 0, failed: int = 0) -> Waits:
    found = Waits()
    for _ in range(played):
        found.play()
    for reason in dropped:
        found.drop(reason)
    for number in range(failed):
        found.fail(f"ToolDown: no search service\nat try {number}")
    return found


def test_a_group_that_teaches_nothing_is_all_right_all_wrong_or_all_alike() -> None:
    groups = ([True, True], [False, False], [True, False])
    assert [alike([Told(one) for one in group]) for group in groups] == [ALL_RIGHT, ALL_WRONG, ALIKE]


def test_groups_that_are_dropped_are_counted_by_reason_with_what_to_change() -> None:
    doing, detail = waits(*[ALL_RIGHT] * 11, played=12).describe(COUNTS)
    assert doing == "waiting for a batch of 4 groups"
    assert detail == f"1 ready, 7 being played; 12 groups, 11 dropped: all right; {NOTHING}{ADVICE[ALL_RIGHT]}"
    _, mixed = waits(*[ALL_WRONG] * 9, *[ALL_RIGHT] * 2, played=12).describe(COUNTS)
    assert "12 groups, 11 dropped: 9 all wrong, 2 all right" in mixed
    assert mixed.endswith(ADVICE[ALL_WRONG])


def test_groups_that_fail_are_counted_with_the_last_failure_in_one_line() -> None:
    _, detail = waits(ALL_WRONG, played=1, failed=3).describe(COUNTS)
    assert detail == (
        "1 ready, 7 being played; 1 group, 1 dropped: all wrong; 3 groups failed, tasks are issued again; "
        "the last failure: ToolDown: no search service at try 2"
    )


def test_groups_that_take_long_are_told_with_the_settings_of_their_length() -> None:
    assert waits().describe(COUNTS)[1] == f"1 ready, 7 being played; a step comes sooner with {SLOW}"


def test_engines_that_are_missing_come_first() -> None:
    counts = LoopCounts(serving=0, joining=2, ready=0, running=8, batch=4)
    found = waits(failed=3).describe(counts)
    assert found == ("waiting for an engine", "none serves, 2 are starting or load weights")


def test_every_setting_that_is_named_exists() -> None:
    known = {key for key, _ in known_keys(Recipe)}
    named = {key for text in (*ADVICE.values(), SLOW) for key in re.findall(r"\b[a-z]+(?:\.[a-z_]+)+", text)}
    assert named
    assert named <= known


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (FakeTools(seconds=200.0), "being played; a step comes sooner with"),
        (FakeTools(seconds=0.1, down=lambda episode: episode.group < 40), "groups failed, tasks are issued again"),
    ],
)
def test_within_a_minute_the_terminal_says_why_there_is_no_step(
    tools: FakeTools, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[tuple[float, str, str]] = []

    def phase(stage: Stage, doing: str, detail: str = "") -> None:
        phases.append((asyncio.get_running_loop().time(), doing, detail))

    monkeypatch.setattr(Stage, "phase", phase)
    run = make_run(tmp_path, steps=1)
    in_virtual_time(reinforce(run, FakeWorld(tools=tools, calls_of=lambda episode: 1)))
    began = next(at for at, doing, _ in phases if doing == "waiting for the first group")
    at, detail = next((at, detail) for at, doing, detail in phases if doing == "waiting for a batch of 4 groups")
    assert at - began <= 60
    assert said in detail
    assert phases[-2][1:] == ("writing the model", "")
    assert ToolDown.__name__ in detail or "failed" not in detail
