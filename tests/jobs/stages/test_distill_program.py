"""Distillation of an agent that is a program: which of its runs are learnt from, and when the stage ends."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.messages import EpisodeOrder
from coa.config import load
from coa.distill.contamination import Contamination
from coa.distill.dataset.external import OF_PROGRAM, read_run
from coa.distill.dataset.rows import PROGRAM
from coa.distill.dataset.shards import CARD, read_rows, shard_paths
from coa.distill.dataset.tokens import read_samples
from coa.errors import EpisodeFailed, InfrastructureError, UserError
from coa.json_object import Json
from coa.types import Scored, Status, Trajectory
from coa.usage import Usage
from jobs.recipe.checks import check_run
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages import distill_program as stage
from tests.support.programs import chat_model

PROGRAMS = (
    *("agent.program.function=docs.examples.two_calls:run", "agent.program.at_once=2", "team.model=teacher"),
    *("models.teacher.endpoint.url=http://127.0.0.1:1/v1", "models.teacher.endpoint.name=m", "distill.runs=20"),
)
NOBODY = Contamination.of([], 8)


def taught_run(folder: Path, *settings: str) -> RunDir:
    tasks = folder / "tasks.jsonl"
    rows = [{"id": f"t-{n}", "question": f"Number {n} ?", "answer": "x", "grader": "exact"} for n in range(20)]
    tasks.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    model = chat_model(folder / "model")
    given = [f"run_dir={folder / 'run'}", f"tasks.path={tasks}", f"model.path={model}", *PROGRAMS, *settings]
    run = RunDir(load(Recipe, find_recipe("own_tasks"), given), Console(io.StringIO(), io.StringIO()))
    run.prepare()
    return run


def context(order: EpisodeOrder, length: int, status: Status = Status.ANSWERED, trained: bool = True) -> Trajectory:
    mask = np.zeros(length, np.bool_)
    mask[2:] = trained
    return Trajectory(
        task_id=order.task.id,
        sample=0,
        token_ids=np.arange(length, dtype=np.int32),
        action_mask=mask,
        logprobs=np.zeros(length, np.float32),
        versions=np.zeros(length, np.int32),
        prompt_length=2,
        turns=1,
        tool_calls=(),
        status=status,
        answer="x",
        text="x",
        transitions_hold=True,
    )


def scored(order: EpisodeOrder, correct: bool, *others: int, **changed: Any) -> Scored:
    main = context(order, 5, **changed)
    grade = float(correct)
    more = tuple(context(order, length) for length in others)
    return Scored(trajectory=main, correct=correct, grade=grade, reward=grade, well_formed=True, others=more)


Play = Callable[[EpisodeOrder], Scored]


@pytest.fixture
def distilled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Json]:
    """Plays runs as they are told, in place of programs."""

    def distil(play: Play, *settings: str, against: Contamination = NOBODY) -> Json:
        run = taught_run(tmp_path, *settings)

        class Teacher:
            usage = Usage()

            def __init__(self, model: object) -> None:
                assert model == "the model teacher"

        class Player:
            def __init__(self, teacher: Teacher) -> None:
                self._teacher = teacher

            async def play(self, order: EpisodeOrder) -> Scored:
                self._teacher.usage += Usage(1, 10, 1)
                return play(order)

        @asynccontextmanager
        async def models(run: RunDir, names: set[str]) -> AsyncIterator[Json]:
            yield {name: f"the model {name}" for name in names}

        @asynccontextmanager
        async def player(config: Recipe, model: Path, tools: None, teacher: Any, say: object) -> AsyncIterator[Player]:
            assert (model / "chat_template.jinja").exists()
            yield Player(teacher)

        @asynccontextmanager
        async def watched(*_: object) -> AsyncIterator[None]:
            yield

        for name, fake in (("language_models", models), ("program_player", player), ("watched", watched)):
            monkeypatch.setattr(stage, name, fake)
        monkeypatch.setattr(stage, "Teacher", Teacher)
        return asyncio.run(stage.distill_program(run, None, against))  # type: ignore[arg-type]

    return distil


def number(order: EpisodeOrder) -> int:
    return int(order.task.id.removeprefix("t-"))


def test_right_runs_are_learnt_from_with_all_of_their_contexts(tmp_path: Path, distilled: Callable[..., Json]) -> None:
    def play(order: EpisodeOrder) -> Scored:
        match number(order) % 4:
            case 0:
                return scored(order, True, 7)
            case 1:
                return scored(order, False)
            case 2:
                return scored(order, False, status=Status.OUT_OF_TURNS)
            case _:
                return scored(order, False, status=Status.MALFORMED)

    found = distilled(play, "tasks.held_out=0.2")
    data = tmp_path / "run/data"
    lengths = [len(sample) for sample in read_samples(data)]
    kept = found["kept"]
    assert found["transcripts"] == 20 == kept + sum(found["dropped"].values())
    assert sorted(found["dropped"]) == ["malformed", "out of steps", "wrong answer"]
    assert sorted(lengths) == [5] * kept + [7] * kept
    sample = next(read_samples(data))
    assert sample.loss_mask.tolist() == [False] * 2 + [True] * (len(sample) - 2)
    assert (found["requests"], found["tokens"], found["stopped"]) == (20, 220, None)
    assert {(row.source, row.text, row.models) for row in read_rows(data)} == {
        (PROGRAM, "<answer> x</answer>", (("program", "teacher: m"),))
    }
    assert "wrong answer" in (data / CARD).read_text()
    assert [read for _, read in read_run(data, NOBODY)] == [OF_PROGRAM] * len(lengths)


def test_it_ends_once_enough_runs_are_kept(distilled: Callable[..., Json]) -> None:
    found = distilled(lambda order: scored(order, True), "distill.keep=3")
    assert (found["kept"], found["requests"] <= 5) == (3, True)


def test_it_ends_when_the_budget_is_spent(distilled: Callable[..., Json]) -> None:
    found = distilled(lambda order: scored(order, True), "teaching.budget.requests=4")
    assert (found["stopped"], found["kept"]) == ("budget", 4)


def test_a_run_that_failed_is_counted_and_the_others_go_on(tmp_path: Path, distilled: Callable[..., Json]) -> None:
    def play(order: EpisodeOrder) -> Scored:
        if order.id.group == 3:
            raise EpisodeFailed("ProgramFailed", "no luck", tokens=0, tool_calls=0)
        return scored(order, True)

    found = distilled(play)
    assert (found["failed"], found["kept"]) == (1, 19)


def test_when_nothing_but_failures_comes_the_stage_gives_up(distilled: Callable[..., Json]) -> None:
    def play(order: EpisodeOrder) -> Scored:
        raise EpisodeFailed("ProgramFailed", "no luck", tokens=0, tool_calls=0)

    with pytest.raises(InfrastructureError, match="failed in a row; the last: no luck"):
        distilled(play)


def test_where_no_run_is_right_nothing_is_trained_on(tmp_path: Path, distilled: Callable[..., Json]) -> None:
    with pytest.raises(UserError, match=r"none of the program's 20 runs with models.teacher .*: 20 x wrong answer"):
        distilled(lambda order: scored(order, False))
    assert not shard_paths(tmp_path / "run/data")


def test_a_context_without_anything_to_learn_is_no_row(tmp_path: Path, distilled: Callable[..., Json]) -> None:
    distilled(lambda order: scored(order, True, 6, trained=False), "distill.keep=1")
    assert [len(sample) for sample in read_samples(tmp_path / "run/data")] == [6]


def test_tasks_of_evaluation_sets_are_not_played(distilled: Callable[..., Json]) -> None:
    played: list[str] = []

    def play(order: EpisodeOrder) -> Scored:
        played.append(order.task.question)
        return scored(order, True)

    found = distilled(play, against=Contamination.of(["Number 2 ?"], 8))
    assert "Number 2 ?" not in played
    assert sum(found["dropped"].values()) == 20 - len(played) > 0


def test_a_program_needs_a_language_model_that_teaches_it(tmp_path: Path) -> None:
    config = taught_run(tmp_path).config
    check_run(config)
    with pytest.raises(UserError, match="a language model answers the program in distillation"):
        check_run(replace(config, team=replace(config.team, model="")))
    with pytest.raises(UserError, match=r"distill\.transcripts holds runs of teams"):
        check_run(replace(config, distill=replace(config.distill, transcripts="x")))
