"""What a rescue keeps over a restart of the learners, and of the driver."""

import asyncio
import io
import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from coa.config import load
from coa.distill.contamination import EXACT
from coa.errors import InfrastructureError
from coa.rollout import GroupRecord
from coa.teachers.play import play, start
from coa.teachers.run import Assignment, FailedRun
from coa.teachers.store import read_transcripts
from coa.teachers.teams import TeamConfig
from coa.teachers.transcript import Graded, Prompt, Reply
from coa.tools.base import PLAIN
from coa.types import Sample
from coa.usage import Usage
from jobs.cli import find_recipe
from jobs.console import Console
from jobs.recipe import Recipe
from jobs.rl_teachers import FIRST_ATTEMPT, Rescue
from jobs.run import Run
from tests.fakes import played
from tests.teams import MIND, WORLD, uses
from tests.tiny import make_model

MOST = 4
"""Of a batch."""


async def ask(prompt: Prompt) -> Reply:
    return Reply(MIND.reply(prompt), Usage(requests=1, prompt_tokens=50, completion_tokens=10))


class Team:
    """Plays each assignment as the experts would, or not at all."""

    def __init__(self, failing: bool = False) -> None:
        self.finished = Usage()
        self.attempts: list[int] = []
        self._failing = failing

    async def play(self, assignments: Sequence[Assignment], judge: Any) -> Any:
        self.attempts += [assignment.attempt for assignment in assignments]
        if self._failing:
            outcomes: list[Any] = [FailedRun(assignment, "EndpointDown", "refused") for assignment in assignments]
        else:
            started = [start(one, TeamConfig(), seed=0, layouts=(PLAIN,)) for one in assignments]
            runs = [await play(run, ask, uses(WORLD.observe)) for run in started]
            outcomes = [Graded(run, True) for run in runs]
            self.finished += sum((run.usage for run in runs), Usage())
        return type("Played", (), {"outcomes": await judge(outcomes)})


class Stage:
    """A rescue without a loop around it."""

    def __init__(self, run: Run, **team: Any) -> None:
        self.run, self.team = run, Team(**team)
        self.rescue = Rescue(run, self.team, {})  # pyright: ignore[reportArgumentType]
        self._playing: list[Coroutine[Any, Any, None]] = []

    async def offer(self, *indices: int) -> None:
        """Groups that failed altogether, and what becomes of them."""
        for index in indices:
            task = self.run.training_task("rl", index)
            group = GroupRecord(group=index, task=task, episodes=(played(False), played(False)))
            self.rescue.offer(group, index, self._playing.append)
        await asyncio.gather(*self._playing)
        self._playing.clear()


def a_run(folder: Path, *overrides: str) -> Run:
    settings = [
        f"run_dir={folder}",
        "world.families=[mhqa]",
        "distill.filters.min_interactions=1",
        "rl.rescue.attempts=1",
        "rl.rescue.share=0.5",
        "rl.group=2",
        "rl.window.groups_per_batch=4",
        "rl.checkpoint_every=2",
        "teaching.runs_in_flight=2",
        *overrides,
    ]
    config = load(Recipe, find_recipe("tiny"), settings)
    found = Run(config, Console(io.StringIO(), io.StringIO()))
    found.prepare()
    make_model(found.sft_model)
    return found


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return a_run(tmp_path)


def same(one: Sequence[Sample], other: Sequence[Sample]) -> bool:
    return [sample.token_ids.tolist() for sample in one] == [sample.token_ids.tolist() for sample in other]


def test_no_task_is_taken_on_while_a_batchs_worth_waits(run: Run) -> None:
    async def main() -> None:
        stage = Stage(run)
        await stage.rescue.start(0, 0)
        await stage.offer(0, 1, 2, 3, 4, 5)
        assert stage.team.attempts == [FIRST_ATTEMPT + index for index in range(MOST)]
        assert len(stage.rescue.take(0)) == MOST
        await stage.offer(3, 6)
        assert stage.team.attempts[MOST:] == [FIRST_ATTEMPT + 6], "a task that was played already is not played again"

    asyncio.run(main())


def test_what_was_taken_since_the_checkpoint_waits_again_when_learners_restart(run: Run) -> None:
    async def main() -> None:
        stage = Stage(run)
        await stage.rescue.start(0, 0)
        batches: list[list[Sample]] = []
        for version in range(4):
            await stage.offer(2 * version, 2 * version + 1)
            batches.append(stage.rescue.take(version))
            assert len(batches[-1]) == 2
        assert [stage.rescue.trained(version) for version in (1, 2, 3)] == [2, 2, 2]
        await stage.offer(8)
        await stage.rescue.start(2, 4)  # the last checkpoint: batches 2 and 3 are void
        again = stage.rescue.take(2)
        assert same(again, [*batches[2], *batches[3]])
        assert len(stage.rescue.take(3)) == 1
        assert [stage.rescue.trained(version) for version in (3, 4)] == [4, 1]
        told = stage.rescue.told()
        assert (told["imitated"], told["runs of the team"]) == (9, 9)

    asyncio.run(main())


def test_a_driver_that_starts_again_imitates_what_the_one_before_it_paid_for(run: Run) -> None:
    async def main() -> None:
        first = Stage(run)
        await first.rescue.start(0, 0)
        await first.offer(0, 1)
        first.rescue.take(0)
        first.rescue.write()
        await first.offer(2, 3)
        first.rescue.write()
        expected = first.rescue.take(1)
        second = Stage(run)
        assert second.team.finished == first.team.finished != Usage()
        await second.rescue.start(1, 2)  # a checkpoint from which tasks 2 and 3 come again
        await second.offer(2, 3)
        assert second.team.attempts == []
        assert same(second.rescue.take(1), expected)
        await second.offer(4)
        second.rescue.write()
        kept = [one.transcript.attempt - FIRST_ATTEMPT for one in read_transcripts(run.teachers / "rescue")]
        assert kept == [0, 1, 2, 3, 4]

    asyncio.run(main())


def test_a_team_that_is_down_ends_the_stage(run: Run) -> None:
    async def main() -> None:
        stage = Stage(run, failing=True)
        await stage.rescue.start(0, 0)
        await stage.offer(0, 1, 2, 3)
        with pytest.raises(InfrastructureError, match="no run of the team is finished any more: EndpointDown: refused"):
            await stage.offer(4)

    asyncio.run(main())


def test_a_task_of_an_evaluation_set_is_not_imitated(tmp_path: Path) -> None:
    async def main() -> None:
        named = tmp_path / "named.jsonl"
        named.write_text(json.dumps({"question": a_run(tmp_path).training_task("rl", 0).question, "answer": "x"}))
        stage = Stage(a_run(tmp_path, f"distill.against=[{named}]"))
        await stage.rescue.start(0, 0)
        await stage.offer(0, 1)
        assert len(stage.rescue.take(0)) == 1
        assert stage.rescue.counts[EXACT] == 1

    asyncio.run(main())
