"""Evaluation beside the loop, with a pool whose episodes end when the test says so."""

import asyncio
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.learners.commits import read_scores
from coa.agent.records import EpisodeRecord
from coa.config import load
from coa.errors import ToolDown
from coa.reporting.metrics import Record, read_metrics
from coa.types import Status, Task
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.held_out import HeldOut, due, measure
from tests.jobs.stages.reinforcement.test_rl_stats import EPISODE

SIZE = 6


class GatedPool:
    """Answers when the gate is open; right where the task's id says an even number."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked: list[str] = []
        self.at_once = self.most_at_once = 0
        self.version = 0
        self.failing = False

    async def evaluate(
        self, task: Task, samples: Sequence[int], sampling: Any, turns: int | None = None
    ) -> tuple[EpisodeRecord, ...]:
        assert (list(samples), sampling.temperature, turns) == ([0], 0.0, None)
        self.asked.append(task.id)
        oldest = self.version
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.gate.wait()
        finally:
            self.at_once -= 1
        if self.failing:
            raise ToolDown("no search")
        return (replace(EPISODE, correct=self.version > 0, oldest=oldest, newest=self.version),)


class Bench:
    """A run directory, a pool, and what the loop would do."""

    def __init__(self, folder: Path, every: int = 2, *more: str) -> None:
        settings = [f"run_dir={folder}", f"rl.evaluate_every={every}", f"rl.evaluate_tasks={SIZE}"]
        config = load(Recipe, find_recipe("tiny"), [*settings, "evaluation.tasks=40", "wandb.mode=disabled", *more])
        self.said = io.StringIO()
        self.run = RunDir(config, Console(self.said, io.StringIO()))
        self.run.prepare()
        self.pool = GatedPool()
        self.at(0)

    def at(self, version: int) -> None:
        """A start of the learners at a version."""
        self.log = self.run.metrics("rl", version + 1)
        self.held_out = HeldOut(
            self.run, self.pool, asyncio.ensure_future, lambda step, row: self.log.write("rl", step, **row), places=2
        )

    def records(self) -> list[Record]:
        return read_metrics(self.run.folder / "metrics.jsonl")


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_an_evaluation_runs_beside_the_loop_in_a_few_places_and_says_its_versions(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path)
        bench.held_out.start(0)
        await settle()
        assert len(bench.pool.asked) == bench.pool.most_at_once == 2
        assert bench.records() == [], "start returned while nothing had ended"
        bench.pool.version = 1
        bench.held_out.reached(1)
        bench.pool.gate.set()
        await bench.held_out.finish()
        assert bench.pool.most_at_once == 2
        assert len(set(bench.pool.asked)) == len(bench.pool.asked) == SIZE
        [record] = bench.records()
        assert (record["stage"], record["step"]) == ("rl", 0)
        assert (record["eval/oldest_version"], record["eval/newest_version"]) == (0, 1)
        assert (record["eval/pass_at_1"], record["eval/tasks"]) == (1.0, SIZE)
        assert bench.said.getvalue() == "held-out tasks at version 0: 100.0% of 6 right, greedily\n"

    asyncio.run(body())


def test_it_comes_every_so_many_versions_and_never_twice_at_the_same_time(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path, every=2)
        bench.held_out.start(0)
        for version in (1, 2, 3):  # two are due while the first is under way
            bench.held_out.reached(version)
            await settle()
        bench.pool.gate.set()
        await bench.held_out.finish()
        for version in (4, 5, 6, 8):
            bench.pool.version = version
            bench.held_out.reached(version)
            await bench.held_out.finish()
        assert [record["step"] for record in bench.records()] == [0, 4, 6, 8]
        assert len(bench.pool.asked) == 4 * SIZE
        assert len(set(bench.pool.asked)) == SIZE, "the same tasks each time"

    asyncio.run(body())


def test_a_run_that_is_cut_off_does_again_what_was_under_way_and_nothing_else(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path, every=2)
        bench.pool.gate.set()
        bench.held_out.start(0)
        await bench.held_out.finish()
        bench.pool.gate.clear()
        bench.held_out.reached(2)
        await settle()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()  # the driver is killed
        bench.pool.gate.set()
        bench.at(3)  # learners had a checkpoint of version 3
        bench.held_out.start(3)
        await bench.held_out.finish()
        assert [record["step"] for record in bench.records()] == [0, 3]
        bench.at(3)
        bench.held_out.start(3)
        await bench.held_out.finish()
        assert [record["step"] for record in bench.records()] == [0, 3]

    asyncio.run(body())


def test_learners_that_go_back_end_what_is_under_way(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path, every=2)
        bench.held_out.start(0)
        await settle()
        assert bench.pool.at_once == 2
        bench.held_out.start(0)
        await settle()
        assert bench.pool.at_once == 2, "the first one's episodes were cancelled"
        bench.pool.gate.set()
        await bench.held_out.finish()
        assert [record["step"] for record in bench.records()] == [0]

    asyncio.run(body())


def test_a_tool_that_is_down_is_recorded_and_training_goes_on(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path, every=2)
        bench.pool.failing = True
        bench.pool.gate.set()
        bench.held_out.start(0)
        await bench.held_out.finish()
        [record] = bench.records()
        assert record["eval/failed"] == "ToolDown: no search"
        assert "eval/pass_at_1" not in record
        bench.pool.failing = False
        bench.held_out.reached(2)
        await bench.held_out.finish()
        assert "eval/pass_at_1" in bench.records()[-1]

    asyncio.run(body())


def test_scores_are_noted_for_the_checkpoint_that_is_the_best(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path, 2, "checkpoints.keep_best=true")
        bench.pool.gate.set()
        bench.held_out.start(0)
        await bench.held_out.finish()
        bench.pool.version = 2
        bench.held_out.reached(2)
        await bench.held_out.finish()
        assert read_scores(bench.run.scores) == {0: 0.0, 2: 1.0}
        bench.at(1)
        bench.held_out.start(1)
        assert read_scores(bench.run.scores) == {0: 0.0}, "version 2 is rolled back"
        await bench.held_out.finish()
        without = Bench(tmp_path / "without")
        without.pool.gate.set()
        without.held_out.start(0)
        await without.held_out.finish()
        assert not without.run.scores.exists()

    asyncio.run(body())


def test_it_is_off_where_the_recipe_does_not_ask_for_it(tmp_path: Path) -> None:
    async def body() -> None:
        bench = Bench(tmp_path, every=0)
        for version in range(5):
            bench.held_out.reached(version)
        bench.held_out.start(0)
        await bench.held_out.finish()
        assert bench.pool.asked == []

    asyncio.run(body())


@pytest.mark.parametrize(
    ("version", "last", "every", "expected"),
    [(0, -1, 5, True), (4, 0, 5, False), (5, 0, 5, True), (7, 0, 5, True), (9, 5, 5, False), (9, 0, 0, False)],
)
def test_when_one_is_due(version: int, last: int, every: int, expected: bool) -> None:
    assert due(version, last, every) is expected


def test_an_episode_that_sampled_nothing_has_no_version() -> None:
    task = Task(id="t", question="?", answers=("1",), profile="code", family="calc")
    record = measure([task], [replace(EPISODE, correct=False, status=Status.TRUNCATED, oldest=-1, newest=-1)], 2.0)
    assert record == {
        "eval/pass_at_1": 0.0,
        "eval/calc": 0.0,
        "eval/tasks": 1,
        "eval/well_formed": 1.0,
        "eval/truncated_fraction": 1.0,
        "eval/seconds": 2.0,
    }
