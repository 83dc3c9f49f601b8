"""The teachers of a recipe before any of them is started."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace

from actors.teachers.model import TeacherModel
from actors.teachers.team import Outcome, Played, RoleAgent, TeacherTeam, TeachingConfig, Unfinished
from coa.config import load
from coa.teams.run import Assignment, FailedRun
from coa.teams.transcript import Graded
from coa.usage import Usage
from jobs.recipe.needs import models_by_role
from jobs.recipe.schema import Recipe
from jobs.teachers.teaching import Teaching, actor_options
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
        strategy = actor_options(actor, TeachingConfig(), node)["scheduling_strategy"]
        assert (strategy.node_id, strategy.soft) == (node, False)
    free = actor_options(RoleAgent, TeachingConfig(), node)
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
        team = Teaching(SimpleNamespace(play=SimpleNamespace(remote=play)), TeachingConfig(), experts=False, actors={})
        for _ in range(2):
            await team.play([assignment])

    asyncio.run(main())
    assert told == [Usage(), Usage(3, 40, 6)]
