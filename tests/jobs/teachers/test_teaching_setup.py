"""The teachers of a recipe before any of them is started."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.teachers.model import TeacherModel
from actors.teachers.team import Outcome, Played, RoleAgent, TeacherTeam, TeachingConfig, Unfinished
from coa.config import load
from coa.teams.run import Assignment, FailedRun
from coa.teams.transcript import Graded
from coa.usage import Usage
from jobs.recipe.needs import models_by_role
from jobs.recipe.schema import Recipe
from jobs.run.console import Stage
from jobs.teachers import teaching
from jobs.teachers.teaching import Teaching, actor_options, watched
from tests.support.teams import TASKS, play_one


def test_transcripts_tell_what_each_roles_model_is_called() -> None:
    recipe = load(
        Recipe,
        None,
        [
            "tasks.world=tiny",
            "models.strong.endpoint={url: 'http://x/v1', name: gpt-4.1}",
            "models.own.serve.model=Qwen/Qwen3-8B",
            "models.named.serve={model: folder, name: small}",
            "models.idle.endpoint={url: 'http://y/v1', name: nobody}",
            "team.model=own",
            "team.roles={planner: {model: strong}, critic: {model: named}, verifier: {model: ''}}",
        ],
    )
    assert dict(models_by_role(recipe)) == {
        "planner": "strong: gpt-4.1",
        "critic": "named: small",
        **dict.fromkeys(("coder", "searcher"), "own: Qwen/Qwen3-8B"),
    }


def test_who_keeps_a_ledger_runs_where_its_files_are_and_no_call_of_a_teacher_is_recorded() -> None:
    node = "ab" * 28
    for actor in (TeacherModel, TeacherTeam):
        strategy = actor_options(actor, node)["scheduling_strategy"]
        assert (strategy.node_id, strategy.soft) == (node, False)
    free = actor_options(RoleAgent, node)
    assert (free["scheduling_strategy"], free["enable_task_events"]) == ("DEFAULT", False)


def test_a_team_is_told_what_all_runs_that_ended_took() -> None:
    assignment = Assignment(TASKS[0])
    outcomes: list[Outcome] = [
        FailedRun(assignment, "EndpointDown", "away", Usage(2, 30, 4)),
        Unfinished(assignment, Usage(1, 10, 2)),
        Graded(play_one(TASKS[0]), True),
    ]
    told: list[Usage] = []

    async def play(assignments: Sequence[Assignment], finished: Usage) -> Played:
        told.append(finished)
        return Played(outcomes=outcomes, failures={})

    async def main() -> None:
        player: Any = SimpleNamespace(play=SimpleNamespace(remote=play))
        team = Teaching(player, TeachingConfig(), experts=False, actors={})
        for _ in range(2):
            await team.play([assignment])

    asyncio.run(main())
    assert told == [Usage(), Usage(3, 40, 6)]


class _Model:
    """A teacher's model, as its handle is called: each look takes the next of its answers, then the last."""

    def __init__(self, *answers: str, notices: Sequence[str] = ()) -> None:
        self._answers, self._notices = list(answers), list(notices)
        self.looks, self.looked_enough = 0, asyncio.Event()
        self.trouble = SimpleNamespace(remote=self._look)
        self.notices = SimpleNamespace(remote=self._tell)

    async def _tell(self) -> list[str]:
        return self._notices

    async def _look(self) -> str:
        self.looks += 1
        if self.looks == 6:
            self.looked_enough.set()
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def test_what_an_endpoint_is_sent_in_another_way_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teaching, "WATCH_S", 0.0)
    strong, said = _Model("", notices=["it refuses max_tokens"]), list[str]()

    async def watch() -> None:
        async with watched(cast(Any, {"strong": strong}), Stage("distill", None), said.append):
            await strong.looked_enough.wait()

    asyncio.run(watch())
    assert said == ["strong: it refuses max_tokens"]


def test_an_endpoint_that_fails_is_told_of_while_it_does_and_again_when_it_fails_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(teaching, "WATCH_S", 0.0)
    away = "no answer for 31 s"
    strong, own = _Model(away, away, "", away, ""), _Model("")
    stage, said, phases = Stage("distill", None), list[str](), list[str]()
    monkeypatch.setattr(stage, "phase", phases.append)

    async def watch() -> None:
        async with watched(cast(Any, {"strong": strong, "own": own}), stage, said.append):
            await strong.looked_enough.wait()
        looks = strong.looks
        await asyncio.sleep(0.01)
        assert strong.looks == looks, "nobody looks once the context has ended"

    asyncio.run(watch())
    assert said == [f"strong: {away}; runs wait, and are tried again"] * 2
    assert phases == [away] * 3
