"""Worlds by name, the section of a recipe that a name chooses, and a file of tasks as one more world."""

import json
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from coa.config import dump, load
from coa.errors import UserError
from coa.tasks.file_tasks import FileTasks, TasksConfig
from coa.tasks.worlds import WORLDS, NoWorld, Settings, World, find_world, settings_of
from coa.types import Task
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of
from tests.support.registries import lend


@dataclass(frozen=True)
class Numbers(Settings):
    largest: int = 9


class Counting(World):
    name = "counting"
    settings_type = Numbers

    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        number = str(index % self.settings.largest)
        return Task(id=f"{purpose}-{seed}-{index}", question=number, answers=(number,), profile="code", family="n")

    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        return tuple(self.training_task("evaluate", index, seed=seed) for index in range(count))

    def profiles(self) -> set[str]:
        return {"code"}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    lend(monkeypatch, WORLDS, "counting", Counting)


def tasks_file(folder: Path, count: int = 20) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(f'{{"question": "{n} ?", "answer": "x", "grader": "f1"}}\n' for n in range(count)))
    return path


def test_a_world_is_found_by_its_name_and_an_unknown_one_names_the_known(counting: None) -> None:
    assert find_world("counting") is Counting
    assert find_world(None) is NoWorld
    with pytest.raises(UserError, match=r"^unknown world 'count': known are tiny, reasoning_gym, documents, counting$"):
        find_world("count")


def test_a_built_in_world_is_imported_when_it_is_first_looked_at() -> None:
    code = (
        "import sys; from coa.tasks.worlds import find_world; name = 'coa.demo'; before = name in sys.modules\n"
        "find_world('tiny'); print(before, name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_the_section_world_is_of_the_world_that_is_named(counting: None, tmp_path: Path) -> None:
    config = load(Recipe, None, ["world.largest=3", "tasks.world=counting"])
    assert config.world == Numbers(largest=3)
    path = tmp_path / "r.yaml"
    path.write_text(dump(config))
    assert load(Recipe, path) == config
    assert load(Recipe, path, ["world.largest=4"]).world == Numbers(largest=4)
    assert load(Recipe).world == Settings()


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("tasks.world=counting", "world.largst=3"),
            "unknown key world.largst; the nearest known key is world.largest",
        ),
        (("tasks.world=counting", "world.largest=x"), "world.largest is 'x', expected int"),
        (("world.largest=3",), "unknown key world.largest: set tasks.world to a world that has settings"),
        (("tasks.world=[a]",), "tasks.world is ['a'], expected a name"),
        (("tasks.world=gone",), "unknown world 'gone': known are tiny, reasoning_gym, documents, counting"),
    ],
)
def test_a_setting_that_the_world_has_not_is_one_line(counting: None, overrides: tuple[str, ...], said: str) -> None:
    with pytest.raises(UserError) as caught:
        load(Recipe, None, overrides)
    assert str(caught.value).endswith(said)


def test_a_world_travels_as_its_settings(counting: None) -> None:
    world = find_world("tiny")(load(Recipe, None, ["tasks.world=tiny", "world.seed=7"]).world)
    assert world.articles
    packed = pickle.dumps(world)
    assert len(packed) < 2000, "no page travels"
    assert pickle.loads(packed).articles == world.articles


def test_a_recipe_without_tasks_says_what_to_set() -> None:
    world = world_of(Recipe())
    assert world.mistake().startswith(
        "there are no tasks: set tasks.path to a file of yours, or tasks.world to one of "
    )
    assert (world.articles, world.site, world.has_experts) == (None, None, False)


def test_a_file_is_a_world_whose_training_tasks_come_again_and_are_never_evaluated(tmp_path: Path) -> None:
    world = FileTasks(TasksConfig(path=str(tasks_file(tmp_path)), held_out=0.25), NoWorld(Settings()))
    held_out = world.evaluation_tasks(3, seed=0)
    trained = [world.training_task("rl", index, seed=0) for index in range(2 * world.team_runs)]
    assert len({task.id for task in trained} | {task.id for task in held_out}) == 20
    assert not {task.id for task in trained} & {task.id for task in held_out}
    first, second = trained[: world.team_runs], trained[world.team_runs :]
    assert {one.id for one in first} == {one.id for one in second}
    assert first != second, "in another order each time"
    assert (world.profiles(), world.graders(), world.mistake()) == ({"mhqa"}, {"f1"}, "")


def test_a_file_that_has_nothing_to_hold_out_is_a_mistake(tmp_path: Path) -> None:
    path = tasks_file(tmp_path)
    world = FileTasks(TasksConfig(path=str(path), held_out=0.0), NoWorld(Settings()))
    told = f"tasks.held_out=0 of the 20 tasks of {path} leaves 20 to train on and 0 held out; both are needed"
    assert world.mistake() == told


def test_a_file_has_what_the_world_around_it_gives(tmp_path: Path) -> None:
    overrides = [f"tasks.path={tasks_file(tmp_path)}", "tasks.world=tiny"]
    world, around = world_of(load(Recipe, None, overrides)), world_of(load(Recipe, None, overrides[1:]))
    assert world.lexicon() == around.lexicon()
    assert world.articles == around.articles
    assert (world.columns, world.has_experts) == (("strategy",), True)
    assert world.caution(["wiki_search"]).startswith(
        "caution: wiki_search will find the made-up pages of the world tiny"
    )
    assert world.caution([]) == around.caution(["wiki_search"]) == ""
    again = pickle.loads(pickle.dumps(world))
    assert again.evaluation_tasks(1, seed=0) == world.evaluation_tasks(1, seed=0)


def test_a_file_that_changes_under_a_run_stays_as_it_was_first_seen(tmp_path: Path) -> None:
    path = tasks_file(tmp_path)
    config = TasksConfig(path=str(path))
    world = FileTasks(config, NoWorld(Settings()))
    before = world.evaluation_tasks(0, seed=0)
    path.write_text(path.read_text() + json.dumps({"question": "another ?", "answer": "x"}) + "\n")
    assert world.evaluation_tasks(0, seed=0) == before
    assert len(FileTasks(replace(config, held_out=1.0), NoWorld(Settings())).evaluation_tasks(0, seed=0)) == 21


def test_settings_are_the_worlds_own_dataclass(counting: None) -> None:
    assert settings_of("counting") is Numbers
    assert settings_of(None) is Settings
