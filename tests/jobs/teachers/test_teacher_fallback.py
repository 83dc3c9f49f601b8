"""What a fallback keeps over a restart of the learners, and of the driver."""

import asyncio
import io
import json
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from coa.agent.records import GroupRecord
from coa.config import load
from coa.distill.contamination import EXACT
from coa.distill.fallback import imitations
from coa.errors import EndpointDown
from coa.llm.completions import Completion
from coa.teams.kinds import start
from coa.teams.play import play
from coa.teams.run import Assignment, FailedRun
from coa.teams.store import read_transcripts
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Graded, Prompt, Reply
from coa.tools.base import PLAIN
from coa.types import Sample
from coa.usage import Usage
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.teachers import fallback
from jobs.teachers.fallback import FIRST_ATTEMPT, TRY_AGAIN_S, TeacherFallback, TeamState
from tests.support.fakes import played
from tests.support.teams import MIND, WORLD, uses
from tests.support.tiny import make_model
from tests.support.virtual_time import in_virtual_time, stand_still

pytestmark = pytest.mark.anyio

MOST = 4
"""Of a batch."""


async def ask(prompt: Prompt) -> Reply:
    return Reply(MIND.reply(prompt), Usage(requests=1, prompt_tokens=50, completion_tokens=10))


class Team:
    """Plays each assignment as the experts would, or not at all."""

    def __init__(self, failing: bool = False, right: bool = True, team: TeamConfig | None = None) -> None:
        self.team = team or TeamConfig()
        self.finished = Usage()
        self.attempts: list[int] = []
        self.failing, self.right = failing, right

    async def play(self, assignments: Sequence[Assignment], judge: Any) -> Any:
        self.attempts += [assignment.attempt for assignment in assignments]
        if self.failing:
            outcomes: list[Any] = [FailedRun(assignment, "EndpointDown", "refused") for assignment in assignments]
        else:
            started = [start(one, self.team, seed=0, layouts=(PLAIN,)) for one in assignments]
            runs = [await play(run, ask, uses(WORLD.observe)) for run in started]
            outcomes = [Graded(run, self.right) for run in runs]
            self.finished += sum((run.usage for run in runs), Usage())
        return type("Played", (), {"outcomes": await judge(outcomes)})


class Stage:
    """A fallback without a loop around it."""

    def __init__(self, run: RunDir, model: Any = None, **team: Any) -> None:
        self.run, self.team = run, Team(**team)
        self.fallback = TeacherFallback(run, self.team, {"m": model} if model else {})  # pyright: ignore[reportArgumentType]
        self._playing: list[Coroutine[Any, Any, None]] = []

    @property
    def attempts(self) -> list[int]:
        """That the team was asked for, counted from the first one of the stage."""
        return [attempt - FIRST_ATTEMPT for attempt in self.team.attempts]

    async def start(self, version: int) -> None:
        await self.fallback.start(version, self._playing.append)
        await self._play()

    async def offer(self, *indices: int) -> None:
        """Groups that failed altogether, and what becomes of them."""
        for index in indices:
            self.fallback.offer(self._group(index), index, self._playing.append)
        await self._play()

    def give(self, index: int) -> None:
        """A group that failed altogether, of which nothing becomes."""
        self.fallback.offer(self._group(index), index, lambda work: work.close())

    def _group(self, index: int) -> GroupRecord:
        task = self.run.training_task("rl", index)
        return GroupRecord(group=index, task=task, episodes=(played(False), played(False)))

    async def _play(self) -> None:
        playing, self._playing = self._playing, []
        await asyncio.gather(*playing)


def a_run(folder: Path, *overrides: str) -> RunDir:
    settings = [
        f"run_dir={folder}",
        "world.families=[mhqa]",
        "distill.filters.min_interactions=1",
        "rl.teacher_fallback.attempts=1",
        "rl.teacher_fallback.share=0.5",
        "rl.group=2",
        "rl.window.groups_per_batch=4",
        "rl.checkpoint_every=2",
        "teaching.runs_in_flight=2",
        *overrides,
    ]
    config = load(Recipe, find_recipe("tiny"), settings)
    found = RunDir(config, Console(io.StringIO(), io.StringIO()))
    found.prepare()
    make_model(found.sft_model)
    return found


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return a_run(tmp_path)


class Model:
    """The handle of a model that is away for the first requests."""

    def __init__(self, away: int, text: str) -> None:
        self.complete, self._away, self._text = self, away, text

    async def remote(self, *_: Any) -> Completion | EndpointDown:
        self._away -= 1
        return EndpointDown("away") if self._away >= 0 else Completion(self._text, "stop", Usage())


AWAY = 10
REFLECTING = (7, 12, 14, 15, 17)
"""Tasks at which the team reflects, in words that may be written anew."""
REVIEWS = [("obedience", '{"rationale": "fine", "verdict": "obeys"}'), ("rewriting", "Berg owns it.")]


def same(one: Sequence[Sample], other: Sequence[Sample]) -> bool:
    return [sample.token_ids.tolist() for sample in one] == [sample.token_ids.tolist() for sample in other]


async def test_no_task_is_taken_on_while_a_batchs_worth_waits(run: RunDir) -> None:
    stage = Stage(run)
    await stage.start(0)
    await stage.offer(0, 1, 2, 3, 4, 5)
    assert stage.attempts == list(range(MOST))
    assert len(stage.fallback.take(0)) == MOST
    await stage.offer(3, 6)
    assert stage.attempts[MOST:] == [6], "a task that was played already is not played again"


async def test_of_a_debate_the_winners_line_is_imitated(run: RunDir) -> None:
    stage = Stage(run, team=TeamConfig(rules="debate"))
    await stage.start(0)
    await stage.offer(0, 1)
    assert len(stage.fallback.take(0)) == 2
    assert stage.fallback.stats()["runs of the team"] == 2


async def four_batches(stage: Stage) -> list[list[Sample]]:
    """Of two samples each, of which the first three are trained; the run of a ninth task waits."""
    await stage.start(0)
    batches: list[list[Sample]] = []
    for version in range(4):
        await stage.offer(2 * version, 2 * version + 1)
        batches.append(stage.fallback.take(version))
        assert len(batches[-1]) == 2
    assert [stage.fallback.trained(version) for version in (1, 2, 3)] == [2, 2, 2]
    await stage.offer(8)
    return batches


async def test_what_was_taken_since_the_checkpoint_waits_again_when_learners_restart(run: RunDir) -> None:
    stage = Stage(run)
    batches = await four_batches(stage)
    await stage.start(2)  # the last checkpoint: batches 2 and 3 are void
    again = stage.fallback.take(2)
    assert same(again, [*batches[2], *batches[3]])
    assert len(stage.fallback.take(3)) == 1
    assert [stage.fallback.trained(version) for version in (3, 4)] == [4, 1]
    told = stage.fallback.stats()
    assert (told["imitated"], told["runs of the team"]) == (9, 9)


async def test_a_checkpoint_that_is_still_written_is_not_gone_back_to(run: RunDir) -> None:
    """Learners that die as they write that of version 2 begin again at version 0."""
    stage = Stage(run)
    batches = await four_batches(stage)
    await stage.start(0)
    again = [sample for version in (0, 1) for sample in stage.fallback.take(version)]
    assert same(again, [sample for batch in batches for sample in batch])


async def test_a_driver_that_is_killed_loses_nothing_that_was_paid_for(run: RunDir) -> None:
    first = Stage(run)
    batches = await four_batches(first)
    first.give(9)  # its run is under way
    second = Stage(run)  # all tasks that come from here on are beyond these
    paid = [one.transcript.usage for one in read_transcripts(run.teachers / "fallback")]
    assert second.team.finished == sum(paid, Usage()) != Usage()
    await second.start(2)  # the last checkpoint: batches 2 and 3 are void
    assert second.attempts == [8, 9], "what was not written is played again, as the ledgers have it"
    await second.offer(4, 9)
    assert second.attempts == [8, 9], "a task that fails again has its run already"
    assert same(second.fallback.take(2), [*batches[2], *batches[3]])
    assert len(second.fallback.take(3)) == 2
    assert second.fallback.stats()["imitated"] == 10
    third = Stage(run)
    await third.start(3)  # batch 3 is void; what the first one took for it counts for nothing
    assert len(third.fallback.take(3)) == 2
    assert third.fallback.take(4) == third.attempts == []
    kept = [one.transcript.attempt - FIRST_ATTEMPT for one in read_transcripts(run.teachers / "fallback")]
    assert kept == list(range(10)), "each once"


async def test_of_a_run_that_is_imitated_several_times_a_killed_driver_leaves_the_rest(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fallback, "imitations", lambda *given: 3 * list(imitations(*given)))
    first = Stage(run)
    await first.start(0)
    await first.offer(0, 1)
    [*_, last] = first.fallback.take(0)
    second = Stage(run)
    await second.start(1)
    assert same(second.fallback.take(1), [last, last])


async def test_a_line_that_a_kill_cut_off_counts_for_nothing(run: RunDir) -> None:
    first = Stage(run)
    await first.start(0)
    await first.offer(0, 1)
    taken = first.fallback.take(0)
    book = run.teachers / "fallback" / "journal.jsonl"
    book.write_text(book.read_text()[:-2])
    for _ in range(2):
        second = Stage(run)
        await second.start(1)
        assert same(second.fallback.take(1), taken)


def test_reinforcement_continues_without_a_team_that_is_down_and_takes_it_again_once_it_is_up(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(run.console, "say", said.append)

    async def main() -> None:
        stage = Stage(run, failing=True)
        await stage.start(0)
        await stage.offer(0, 1, 2, 3)
        assert stage.fallback.state is TeamState.up
        await stage.offer(4)
        assert stage.fallback.state is TeamState.down
        assert said == [
            "the teacher fallback's team is down, and RL continues without it: EndpointDown: refused",
        ]
        await stage.offer(5, 6)
        assert stage.attempts == [0, 1, 2, 3, 4]
        assert stage.fallback.take(0) == []
        stand_still(TRY_AGAIN_S)
        await stage.offer(5, 6)
        assert stage.attempts[5:] == [5], "one task, to see whether the team is up"
        stage.team.failing = False
        stand_still(TRY_AGAIN_S)
        await stage.offer(7)
        assert said[1:] == ["the teacher fallback's team is up again"]
        await stage.offer(8)
        assert stage.attempts[6:] == [7, 8]
        assert len(stage.fallback.take(0)) == 2
        found = stage.fallback.stats()
        assert {key: found[key] for key in ("EndpointDown", "while the team was down", "times the team was down")} == {
            "EndpointDown": 6,
            "while the team was down": 3,
            "times the team was down": 1,
        }
        assert found["team"] == "up"

    in_virtual_time(main())


def test_a_team_that_is_always_wrong_is_down_until_it_is_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    run = a_run(tmp_path, "team.model=m", "models.m.endpoint.name=x", "teaching.same_flaw=3")
    monkeypatch.setattr(run.console, "say", said.append)

    async def main() -> None:
        stage = Stage(run, right=False)
        await stage.start(0)
        await stage.offer(0, 1)
        assert stage.fallback.state is TeamState.up
        await stage.offer(2)
        assert stage.fallback.state is TeamState.down
        [told] = said
        assert told.startswith(
            "the teacher fallback's team is down, and RL continues without it: 3 team runs had the same flaw, and none "
            "was useful: wrong answer, such as at task "
        )
        await stage.offer(3, 4)
        stand_still(TRY_AGAIN_S)
        await stage.offer(5)
        assert (stage.attempts, stage.fallback.state) == ([0, 1, 2, 5], TeamState.down)
        stage.team.right = True
        stand_still(TRY_AGAIN_S)
        await stage.offer(6)
        assert (said[1:], stage.fallback.state) == (["the teacher fallback's team is up again"], TeamState.up)

    in_virtual_time(main())


async def test_a_task_of_an_evaluation_set_is_not_imitated(tmp_path: Path) -> None:
    named = tmp_path / "named.jsonl"
    named.write_text(json.dumps({"question": a_run(tmp_path).training_task("rl", 0).question, "answer": "x"}))
    stage = Stage(a_run(tmp_path, f"distill.against=[{named}]"))
    await stage.start(0)
    await stage.offer(0, 1)
    assert len(stage.fallback.take(0)) == 1
    assert stage.fallback.counts[EXACT] == 1


@pytest.mark.parametrize(("review", "text"), REVIEWS)
async def test_a_reviewer_that_is_away_for_a_moment_costs_no_run(tmp_path: Path, review: str, text: str) -> None:
    settings = (f"distill.{review}.model=m", f"teaching.reissues={AWAY}", "teaching.reissue_after_s=0")
    stage = Stage(a_run(tmp_path, *settings), Model(AWAY, text))
    await stage.start(0)
    await stage.offer(REFLECTING[0])
    assert len(stage.fallback.take(0)) == 1


@pytest.mark.parametrize(("review", "text"), REVIEWS)
async def test_a_reviewer_that_is_down_fails_runs_and_then_the_team(tmp_path: Path, review: str, text: str) -> None:
    settings = (f"distill.{review}.model=m", "teaching.reissues=0")
    run = a_run(tmp_path, *settings)
    stage = Stage(run, Model(1000, text))
    await stage.start(0)
    await stage.offer(*REFLECTING[:MOST])
    assert stage.fallback.counts["EndpointDown"] == MOST
    await stage.offer(REFLECTING[MOST])
    assert stage.fallback.state is TeamState.down
    again = Stage(run, Model(0, text))
    await again.start(0)
    assert len(again.fallback.take(0)) + len(again.fallback.take(1)) == len(REFLECTING), (
        "a driver that starts again has them reviewed"
    )
