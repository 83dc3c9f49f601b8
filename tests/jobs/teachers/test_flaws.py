"""Team runs that all have the same flaw end the stage; its line shows what is kept and why others are dropped."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.teachers.team import Played, TeachingConfig
from actors.tools.remote import ToolClient
from coa.config import load
from coa.distill.filters import Filter
from coa.distill.stages import FilterConfig
from coa.errors import UserError
from coa.teams.kinds import start
from coa.teams.play import play
from coa.teams.run import Assignment, FailedRun
from coa.teams.teams import EXPERTS, TeamConfig
from coa.teams.transcript import AgentStep, Ending, Graded, Transcript
from coa.tools.base import PLAIN
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console, Stage
from jobs.run.distill_store import DistillStore
from jobs.run.run_dir import RunDir
from jobs.stages import distill as distilling
from jobs.teachers.flaws import Flaws, last_reply
from jobs.teachers.teaching import Teaching
from jobs.teachers.team_run_buffer import TeamRunBuffer
from tests.support.teams import MIND, TASKS, WORLD, asks, play_one, uses

RIGHT = play_one(TASKS[0])
MALFORMED = replace(
    RIGHT, task=replace(TASKS[1], id="t-1"), steps=(AgentStep("planner", "I will\nsearch."),), ending=Ending.MALFORMED
)
SAYS_NOTHING = FailedRun(Assignment(replace(TASKS[2], id="t-2")), "EmptyCompletion", "http://m: it calls the tool find")
AWAY = FailedRun(Assignment(TASKS[2]), "EndpointDown", "http://m: no answer")


def flaws(*runs: Any, most: int = 3, useful: bool = False) -> Flaws:
    """After these runs: Graded, FailedRun, or a flaw of a malformed run."""
    counted = Flaws(most, useful=useful)
    for run in runs:
        if isinstance(run, str):
            counted.take(Graded(MALFORMED, None), run)
        else:
            counted.take(run, None)
    return counted


def test_as_many_runs_with_the_same_flaw_as_may_be_end_the_stage_with_a_reply_and_the_setting() -> None:
    flaws("malformed", "malformed").check()
    with pytest.raises(UserError) as caught:
        flaws("malformed", "wrong answer", "malformed", "wrong answer", AWAY, "malformed").check()
    assert str(caught.value) == (
        "3 team runs had the same flaw, and none was useful: malformed, such as at task t-1: the planner replied "
        "'I will search.'; change the team or distill.filters, or set teaching.same_flaw, which is 3 (0: no limit)"
    )


def test_after_one_useful_run_a_flaw_is_no_reason_to_end() -> None:
    good = Graded(RIGHT, True)
    flaws("malformed", "malformed", good, *["malformed"] * 99).check()
    flaws(*["malformed"] * 99, useful=True).check()
    flaws(*["malformed"] * 99, most=0).check()
    flaws(*[AWAY] * 99).check()


def test_replies_without_text_end_the_stage_whenever_they_begin() -> None:
    good = Graded(RIGHT, True)
    flaws(SAYS_NOTHING, SAYS_NOTHING, good, SAYS_NOTHING, SAYS_NOTHING).check()
    assert flaws(good, SAYS_NOTHING, "malformed", SAYS_NOTHING, SAYS_NOTHING).problem.startswith(
        "3 team runs had the same flaw, since the last useful one: replies without text, such as at task t-2: "
        "http://m: it calls the tool find; "
    )


def test_of_a_wrong_answer_the_accepted_ones_are_quoted() -> None:
    said = RIGHT.steps[-1]
    assert isinstance(said, AgentStep)
    accepted = " or ".join(RIGHT.task.answers)
    assert last_reply(RIGHT) == f"the {said.agent} replied {said.output.strip()!r}, accepted: {accepted}"
    assert len(last_reply(replace(MALFORMED, steps=(AgentStep("planner", "x" * 9999),)))) < 200
    assert last_reply(replace(MALFORMED, steps=())) == "no agent replied"


def buffer_in(folder: Path, *settings: str) -> TeamRunBuffer:
    filter = Filter(FilterConfig(keep_without_reflection=1.0))

    async def revise(kept: Any) -> Any:
        return kept

    store = DistillStore(folder / "teachers", folder / "data", filter, revise=revise)
    asyncio.run(store.open())
    run: Any = SimpleNamespace(config=load(Recipe, None, ["team.model=m", "teaching.same_flaw=2", *settings]))
    return TeamRunBuffer(run, store, filter.flaw)


def take(buffer: TeamRunBuffer, *runs: Graded | FailedRun) -> dict[str, Any]:
    """What the stage's line shows once the buffer has these runs."""

    async def go() -> None:
        await buffer.take(Played(outcomes=list(runs), failures={}))

    asyncio.run(go())
    stage = Stage("distill", None)
    buffer.show(stage)
    return {name: value for name, value in stage.fields.items() if name != "runs_s"}


def attempt(transcript: Transcript, number: int) -> Transcript:
    return replace(transcript, attempt=number)


def test_what_is_kept_and_why_others_are_dropped_is_shown_before_anything_is_written(tmp_path: Path) -> None:
    buffer = buffer_in(tmp_path)
    wrong = [Graded(attempt(RIGHT, number), False) for number in (1, 2)]
    shown = take(buffer, Graded(RIGHT, True), *wrong, Graded(MALFORMED, None))
    assert shown == {"kept": 1, "dropped": 3, "wrong answer": 2, "too few interactions": 1}
    asyncio.run(buffer.flush())
    assert take(buffer) == shown, "a written run counts as it did"
    assert take(buffer, AWAY) == {**shown, "failed": 1}


def test_runs_are_written_as_soon_as_enough_of_them_may_be_kept(tmp_path: Path) -> None:
    buffer = buffer_in(tmp_path, "distill.keep=2")
    kept = []
    for run in (RIGHT, MALFORMED, attempt(RIGHT, 1), play_one(TASKS[1])):  # the third is a duplicate
        take(buffer, Graded(run, run is not MALFORMED))
        kept.append(buffer._store.report.kept)
    assert kept == [0, 0, 1, 2]


def test_a_resumed_stage_counts_its_own_runs_and_knows_the_useful_ones_before_it(tmp_path: Path) -> None:
    first = buffer_in(tmp_path)
    wrong = [Graded(attempt(RIGHT, number), False) for number in range(1, 9)]
    take(first, wrong[0])
    assert (first.flaws.problem, first.room()) == ("", 2)
    take(first, wrong[1])
    assert first.flaws.problem.startswith("2 team runs had the same flaw, and none was useful: wrong answer, ")
    asyncio.run(first.flush())
    again = buffer_in(tmp_path)
    take(again, wrong[2])
    again.flaws.check()
    take(again, Graded(RIGHT, True))
    assert again.room() == again.flaws.most * 100 == 200
    asyncio.run(again.flush())
    last = buffer_in(tmp_path)
    take(last, *wrong[3:])
    last.flaws.check()
    assert last.room() == 200


@pytest.mark.parametrize("settings", [["teaching.same_flaw=0"], [f"team.model='{EXPERTS}'"], ["distill.transcripts=x"]])
def test_runs_that_cost_nothing_or_have_no_limit_are_all_played(settings: list[str], tmp_path: Path) -> None:
    buffer = buffer_in(tmp_path, *settings)
    take(buffer, *(Graded(attempt(RIGHT, number), False) for number in range(9)))
    buffer.flaws.check()
    assert buffer.room() == 200


def test_no_more_runs_are_played_at_the_same_time_than_there_is_room_for() -> None:
    playing, peaks = 0, list[int]()

    async def play(assignments: list[Any], _: object) -> Played:
        nonlocal playing
        playing += 1
        peaks.append(playing)
        for _ in range(9):
            await asyncio.sleep(0)
        playing -= 1
        return Played(outcomes=[], failures={})

    async def go(room: Callable[[], int] | None) -> int:
        peaks.clear()
        team: Any = SimpleNamespace(play=SimpleNamespace(remote=play))
        teaching = Teaching(team, TeachingConfig(runs_in_flight=7), experts=False, actors={})
        assignments = [Assignment(task) for task in TASKS[:9]]
        assert len([played async for played in teaching.stream(assignments, room=room)]) == 9
        return max(peaks)

    assert asyncio.run(go(lambda: 2)) == 2
    assert asyncio.run(go(lambda: 2 if len(peaks) < 4 else 5)) == 5
    assert asyncio.run(go(None)) == 7


def distilled(
    folder: Path, outcome: Callable[[Assignment], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, int]:
    """What the stage gives or raises if the team's runs end so, and how many were begun."""
    begun: list[Assignment] = []

    async def take_on(assignments: list[Assignment], _: object) -> Played:
        begun.extend(assignments)
        await asyncio.sleep(0)
        return Played(outcomes=[await outcome(one) for one in assignments], failures={})

    @asynccontextmanager
    async def models(*_: Any) -> AsyncIterator[dict[str, Any]]:
        yield {}

    @asynccontextmanager
    async def team(run: RunDir, *_: Any) -> AsyncIterator[Teaching]:
        player: Any = SimpleNamespace(play=SimpleNamespace(remote=take_on))
        yield Teaching(player, run.config.teaching, experts=False, actors={})

    monkeypatch.setattr(distilling, "language_models", models)
    monkeypatch.setattr(distilling, "teaching", team)
    settings = ("team.model=m", "models.m.endpoint.name=x", "world.families=[mhqa]", "distill.runs=50")
    config = load(Recipe, find_recipe("tiny"), [f"run_dir={folder}", "teaching.same_flaw=4", *settings])
    run = RunDir(config, Console(io.StringIO(), io.StringIO()))
    run.prepare()
    try:
        return asyncio.run(distilling.distill(run, ToolClient(cast(Any, None)))), len(begun)
    except UserError as error:
        return error, len(begun)


def test_a_stage_whose_runs_have_one_flaw_ends_early_and_goes_on_once_they_have_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(one: Assignment) -> FailedRun:
        return FailedRun(one, "EmptyCompletion", "http://m: a completion without text: it calls the tool find")

    async def played(one: Assignment, correct: bool) -> Graded:
        run = start(one, TeamConfig(), seed=0, layouts=(PLAIN,))
        return Graded(await play(run, asks(MIND), uses(WORLD.observe)), correct)

    same = "4 team runs had the same flaw, and none was useful"
    error, begun = distilled(tmp_path, silent, monkeypatch)
    assert type(error) is UserError
    assert str(error).startswith(
        "4 team runs had the same flaw, and none was useful: replies without text, such as at "
    )
    assert 4 <= begun < 8, "no more than 4 at the same time"
    error, wrong = distilled(tmp_path, lambda one: played(one, False), monkeypatch)
    assert str(error).startswith(f"{same}: wrong answer, such as at ")
    assert 4 <= wrong < 8
    assert "wrong answer: 4" in (tmp_path / "teachers" / "drops.md").read_text()
    result, rest = distilled(tmp_path, lambda one: played(one, True), monkeypatch)
    assert (result["transcripts"] + result["failed"], result["failed"]) == (50, 4)
    assert result["kept"] > 0
    assert rest == 50 - 4 - 4, "what has ended is not played again"
