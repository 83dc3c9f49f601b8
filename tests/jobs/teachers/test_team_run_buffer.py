"""Where nobody on the team can solve the tasks, the stage ends early and says what to do."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from actors.teachers.team import Played, TeachingConfig
from coa.config import load
from coa.errors import UserError
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.teachers.teaching import Teaching
from jobs.teachers.team_run_buffer import require_right


def stage(*settings: str, graded: int = 100, right: int = 0) -> tuple[Any, Any]:
    config = load(Recipe, find_recipe("tiny"), settings)
    return SimpleNamespace(config=config, world=SimpleNamespace(name="mine.jsonl")), SimpleNamespace(
        graded=graded, right=right
    )


def test_experts_that_are_always_wrong_end_the_stage_with_what_to_do() -> None:
    told = (
        r"^the scripted experts of tasks\.world=tiny were wrong in all of the first 100 runs on mine\.jsonl: let a "
        r"language model teach \(team\.model and models, as in the recipe own_tasks; docs/own_tasks\.md\), or set "
    )
    with pytest.raises(UserError, match=told):
        require_right(*stage(), kept=0)
    with pytest.raises(UserError, match="all of the first 7 runs"):
        require_right(*stage(graded=7), kept=0, least=1)


def test_the_first_wave_is_small_and_none_is_left_out() -> None:
    waves: list[list[Any]] = []

    async def play(assignments: list[Any], _: object) -> Played:
        waves.append(assignments)
        return Played(outcomes=[], failures={})

    async def run(wave: int, count: int) -> list[int]:
        waves.clear()
        team: Any = SimpleNamespace(play=SimpleNamespace(remote=play))
        teaching = Teaching(team, TeachingConfig(wave=wave), experts=True, actors={})
        assignments: Any = range(count)
        assert [played.outcomes async for played in teaching.stream(assignments)] == [[]] * len(waves)
        assert [one for wave in waves for one in wave] == list(range(count))
        return [len(wave) for wave in waves]

    assert asyncio.run(run(250, 620)) == [100, 250, 250, 20]
    assert asyncio.run(run(60, 130)) == [60, 60, 10]
    assert asyncio.run(run(60, 0)) == []


@pytest.mark.parametrize(
    ("settings", "graded", "right", "kept"),
    [
        ((), 99, 0, 0),
        ((), 100, 1, 0),
        ((), 100, 0, 1),
        (("team.model=m", "models.m.endpoint.name=x"), 100, 0, 0),
        (("distill.transcripts=imported",), 100, 0, 0),
    ],
)
def test_all_others_go_on(settings: tuple[str, ...], graded: int, right: int, kept: int) -> None:
    require_right(*stage(*settings, graded=graded, right=right), kept=kept)
