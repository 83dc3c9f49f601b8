"""The books of a distillation: what runs took is counted once, whatever became of them."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.teachers.team import Played
from coa.config import load
from coa.distill.dataset.shards import read_rows
from coa.distill.drop_report import Dropped, details, write_drops
from coa.distill.filters import Filter, Kept
from coa.distill.stages import VIOLATION, WRONG, FilterConfig
from coa.errors import EndpointDown, InfrastructureError
from coa.teams.run import Assignment, FailedRun
from coa.teams.teams import TeamConfig
from coa.teams.transcript import AgentStep, Graded
from coa.usage import Usage
from jobs.recipe.schema import Recipe
from jobs.run.distill_store import DistillStore
from jobs.teachers.review import Review
from jobs.teachers.team_run_buffer import TeamRunBuffer
from tests.support.teams import TASKS, play_one


def books_in(folder: Path) -> DistillStore:
    async def revise(kept: list[Kept]) -> list[Kept]:
        return kept

    return DistillStore(folder, folder / "data", Filter(FilterConfig()), revise=revise)


def test_what_failed_runs_took_is_told_also_after_a_restart(tmp_path: Path) -> None:
    store = books_in(tmp_path)
    for task, took in zip(TASKS, (Usage(2, 20, 4), Usage(6, 60, 1)), strict=False):
        store.give_up(FailedRun(Assignment(task), "EndpointDown", "away", took))
    assert store.usage == books_in(tmp_path).usage == Usage(8, 80, 5)


def test_each_line_of_a_debate_is_a_row_and_its_run_is_paid_once(tmp_path: Path) -> None:
    team = TeamConfig(rules="debate")
    run = next(
        run for task in TASKS if len((run := play_one(task, team=team)).settled) == 3 and run.task.family == "mhqa"
    )
    paid = replace(run, steps=(AgentStep("debater", "<plan> p</plan>", usage=Usage(1, 10, 2)), *run.steps[1:]))
    store = books_in(tmp_path)
    asyncio.run(store.add([Graded(paid, True)], 0.0))
    first, *others = read_rows(tmp_path / "data")
    assert len(others) == store.report.further > 0
    assert (first.usage, {row.usage for row in others}) == (Usage(1, 10, 2), {Usage()})
    told = [[one.outcome for one in row.decisions if one.stage == "lines"] for row in (first, *others)]
    assert told == [[], *([f"line {line}, which agreed"] for line in run.settled[1:][: len(others)])]


def test_what_is_tried_again_is_counted_when_it_ends_again(tmp_path: Path) -> None:
    failed = FailedRun(Assignment(TASKS[0]), "EndpointDown", "away", Usage(2, 20, 4))
    store = books_in(tmp_path)
    store.give_up(failed)
    again = books_in(tmp_path)
    again.retry_failed()
    assert again.usage == Usage()
    again.give_up(failed)
    assert again.usage == books_in(tmp_path).usage == Usage(2, 20, 4)


def test_a_line_that_does_not_tell_what_its_run_took_is_read(tmp_path: Path) -> None:
    (tmp_path / "failed.jsonl").write_text('{"task_id": "a", "attempt": 3, "where": "x", "why": "y"}\n')
    store = books_in(tmp_path)
    assert (list(store.failed), store.usage) == ([("a", 3)], Usage())


def test_a_run_whose_judge_is_down_has_failed_with_what_it_took() -> None:
    took = Usage(2, 20, 4)

    async def complete(*_: Any) -> EndpointDown:
        return EndpointDown("away")

    transcript = play_one(TASKS[0])
    paid = replace(transcript, steps=(AgentStep("planner", "<plan> p</plan>", usage=took), *transcript.steps[1:]))
    run: Any = SimpleNamespace(config=load(Recipe, None, ["distill.obedience.model=m", "teaching.reissues=0"]))
    model: Any = SimpleNamespace(complete=SimpleNamespace(remote=complete))
    review = Review(run, {"m": model}, lambda _: None)
    assert asyncio.run(review.judge([Graded(paid, True)])) == [
        FailedRun(Assignment(TASKS[0], transcript.attempt), "EndpointDown", "away", took)
    ]


def test_only_failures_in_a_row_end_the_stage(tmp_path: Path) -> None:
    failed = FailedRun(Assignment(TASKS[0]), "EndpointDown", "away")
    run: Any = SimpleNamespace(config=load(Recipe, None, ["teaching.runs_in_flight=1"]))
    intake = TeamRunBuffer(run, books_in(tmp_path), lambda _: None)

    def take(*outcomes: Any) -> None:
        asyncio.run(intake.take(Played(outcomes=list(outcomes), failures={})))

    take(failed, failed, Graded(play_one(TASKS[1]), True), failed, failed)
    intake.failed_in_a_row.check()
    take(failed)
    with pytest.raises(
        InfrastructureError, match="too many team runs failed in a row; the last failure: EndpointDown: away"
    ):
        intake.failed_in_a_row.check()


def test_each_run_that_is_dropped_is_a_row_with_the_transition_that_broke(tmp_path: Path) -> None:
    good, broken = (play_one(task) for task in TASKS[:2])
    first = next(step for step in broken.steps if isinstance(step, AgentStep))
    backwards = replace(broken, steps=(replace(first, output="<answer> a</answer>"), *broken.steps))
    right = play_one(TASKS[2])
    wrong = replace(right, attempt=4, task=replace(right.task, answers=("Berg", "the town of Berg")))
    [answer] = TASKS[2].answers[:1]
    pair = f"`{answer}`, accepted `Berg` or `the town of Berg`"

    async def go() -> None:
        store = books_in(tmp_path)
        await store.open()
        await store.add([Graded(good, True), Graded(backwards, True)], 1.0)
        await store.add([Graded(wrong, False)], 2.0)
        again = books_in(tmp_path)
        await again.open()
        assert list(again.dropped()) == list(store.dropped()) == rows
        assert details(rows) == [
            f"transition violation: `answer` at the start under {backwards.task.profile}: 1 runs, such as attempt 0 at "
            f"task {TASKS[1].id}",
            f"{WRONG}: {pair}: 1 runs, such as attempt 4 at task {TASKS[2].id}",
        ]
        write_drops(tmp_path, again.report, again.dropped())
        assert (tmp_path / "drops.md").read_text().splitlines()[-3:] == [
            "Wrong answer:",
            "",
            f"- {TASKS[2].id}, attempt 4: {pair}",
        ]

    rows = [
        Dropped(TASKS[1].id, 0, VIOLATION, f"`answer` at the start under {backwards.task.profile}"),
        Dropped(TASKS[2].id, 4, WRONG, pair),
    ]
    asyncio.run(go())
