"""Agents and chains without some of their tags."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.ablations.__main__ import EXTENSION, WAYS, Found, ablated, figures_of, write_data
from benchmarks.ablations.agents import Ablated, AblatedConfig, without
from coa.agent.grammar import START, parse, render
from coa.agent.profiles import PROFILES
from coa.agent.profiles import profile as find_profile
from coa.agent.profiles.code import CODE
from coa.agent.profiles.web import WEB
from coa.demo import World, WorldConfig, evaluation_tasks
from coa.demo.questions import FAMILIES
from coa.demo.strategy import careful_route
from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.shards import read_rows, write_shard


@pytest.fixture(autouse=True)
def own_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles that are registered here are gone afterwards."""
    monkeypatch.setattr(PROFILES, "_entries", dict(PROFILES.items()))


def demonstrations() -> list[Demonstration]:
    """The careful chains of some tasks of each family."""
    world = World(WorldConfig())
    tasks = evaluation_tasks(world, 24, seed=0)
    return [Demonstration(task=one, text=render(careful_route(world, one).chain), interactions=3) for one in tasks]


def test_what_may_follow_a_tag_that_is_passed_over_comes_in_its_place() -> None:
    assert without(CODE, {"reflection"}).transitions == {
        START: ("plan",),
        "plan": ("code", "answer"),
        "code": ("code", "answer"),
    }
    bare = without(WEB, {"plan", "reflection", "suggested_answer", "double_check"})
    assert bare.name == "web_without_double_check_plan_reflection_suggested_answer"
    assert [tag.name for tag in bare.tags] == ["think", "web_search", "crawl_page", "observation", "answer"]
    after = {"web_search", "crawl_page", "answer"}
    assert {state: set(names) for state, names in bare.transitions.items()} == dict.fromkeys(
        (START, "web_search", "crawl_page"), after
    )


@pytest.mark.parametrize("way", [name for name, way in WAYS.items() if way.without])
def test_shortened_chains_are_valid_and_their_tasks_are_those_of_the_world(way: str, tmp_path: Path) -> None:
    dropped = WAYS[way].without
    before = demonstrations()
    assert {span.tag for one in before for span in parse(one.text).chain} >= set(dropped)
    write_shard(tmp_path / "whole", 0, before, {})
    rows = list(read_rows(write_data(tmp_path / "whole", tmp_path / "data", dropped)))
    assert rows == list(ablated(iter(before), dropped))
    for row in rows:
        chain = parse(row.text).chain
        assert find_profile(row.task.profile).broken_transition(chain) is None
        assert not {span.tag for span in chain} & set(dropped)
    world = Ablated(AblatedConfig(without=list(dropped)))
    assert {row.task.profile for row in rows} == world.profiles()
    assert world.evaluation_tasks(24, seed=0) == tuple(row.task for row in rows)
    assert world.training_task("rl", 0, seed=0).profile in world.profiles()


def test_a_recipe_names_the_world(tmp_path: Path) -> None:
    words = ["train", "--recipe", "tiny", "tasks.world=ablated", "world.without=[plan]", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-m", "jobs.cli", *words, f"run_dir={tmp_path / 'run'}"],
        env={**os.environ, "COA_EXTENSIONS": EXTENSION},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "held-out tasks of the world ablated" in done.stdout


def test_figures_are_means_over_seeds_compared_task_by_task() -> None:
    def found(rate: float) -> Found:
        rates = {family: {"a": rate, "b": 1.0} for family in FAMILIES}
        return Found(sft={family: {"a": 0.0, "b": 0.5} for family in FAMILIES}, rl=rates, tokens=100 * rate)

    figures = figures_of({"whole": [found(0.5), found(1.0)], "no_plan": [found(0.25), found(0.25)]})
    assert figures["whole_all_before"] == 0.25
    assert figures["whole_all_after"] == figures["whole_calc_after"] == 0.875
    assert figures["whole_tokens"] == 75
    assert figures["no_plan_against_whole_difference"] == pytest.approx((0.25 - 0.75) / 2)
    assert figures["no_plan_against_whole_tasks"] == 6
