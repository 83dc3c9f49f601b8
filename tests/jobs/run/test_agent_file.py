"""How a model is asked, kept beside it: what was kept holds, and what a command says of it wins."""

import io
import json
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import pytest

from coa.agent.episode import AgentConfig, Grammar, Limits
from coa.agent.programs.config import ProgramConfig
from coa.config import dump, load
from coa.errors import UserError
from coa.tasks.worlds import WORLDS, NoWorld, Settings
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import (
    AGENT_FILE,
    agent_of,
    as_trained,
    caution_about_agent,
    fill_in_names,
    in_its_world,
    profiles_in,
    write_agent,
    write_world,
)
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages.start import finish_model
from tests.support.registries import lend

KEPT = AgentConfig(instructed=False, layouts=("plain", "json"), limits=Limits(max_turns=3, max_tokens=100))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text("{}")
    write_agent(tmp_path, KEPT)
    return tmp_path


def test_what_was_kept_is_how_a_model_is_asked(model: Path) -> None:
    assert agent_of(model, AgentConfig()) == KEPT


def test_a_stage_leaves_a_model_with_its_tokenizer_and_how_it_is_asked(tmp_path: Path) -> None:
    config = replace(Recipe(run_dir=str(tmp_path)), agent=KEPT)
    run = RunDir(config, Console(io.StringIO(), io.StringIO()))
    for folder in (run.start_model, run.sft_model):
        folder.mkdir(parents=True)
    (run.start_model / "tokenizer.json").write_text("{}")
    (run.sft_model / "config.json").write_text("{}")
    finish_model(run, run.sft_model)
    assert agent_of(run.sft_model, AgentConfig()) == KEPT
    assert (run.sft_model / "tokenizer.json").exists()


def test_what_a_command_says_wins_also_where_it_says_the_default(model: Path) -> None:
    said = ["agent.grammar=enforce", "agent.instructed=true", "agent.limits.max_turns=8", "seed=3"]
    agent = agent_of(model, AgentConfig(), said)
    limits = Limits(max_turns=8, max_tokens=100)
    assert agent == AgentConfig(instructed=True, grammar=Grammar.enforce, layouts=("plain", "json"), limits=limits)


def test_a_models_folder_names_no_program(model: Path) -> None:
    """It may come from anywhere, and whoever tries a model would run it."""
    program = ProgramConfig(command=("python", "agent.py"))
    write_agent(model, replace(KEPT, program=program))
    assert "agent.py" not in (model / AGENT_FILE).read_text()
    (model / AGENT_FILE).write_text(json.dumps({"instructed": False, "program": {"command": ["rm", "-r", "."]}}))
    assert agent_of(model, AgentConfig()) == AgentConfig(instructed=False)
    asked = agent_of(model, AgentConfig(), ["agent.program.command=[python,agent.py]"])
    assert asked == AgentConfig(instructed=False, program=program)


def test_an_unknown_layout_names_the_known_ones(model: Path) -> None:
    with pytest.raises(UserError, match=r"agent.layouts: prose; known are plain, numbered, json"):
        agent_of(model, AgentConfig(), ["agent.layouts=[prose]"])


def test_a_model_is_asked_in_the_world_that_it_was_trained_in(model: Path) -> None:
    plain = load(Recipe)
    assert in_its_world(plain, model) is plain
    trained = load(Recipe, None, ["tasks.world=tiny", "world.families=[web]", "world.experts.lazy_web=[1,1,1,0]"])
    write_world(model, trained)
    asked = in_its_world(load(Recipe, None, ["seed=3"]), model)
    assert (asked.tasks, asked.world, asked.seed) == (trained.tasks, trained.world, 3)
    assert load(Recipe, _written(model / "again.yaml", dump(asked))) == asked
    other = load(Recipe, None, ["tasks.world=tiny", "world.seed=9"])
    assert in_its_world(other, model) is other, "a recipe that names a world means it"


def test_a_model_is_asked_in_the_profile_of_its_own_tasks(model: Path) -> None:
    assert profiles_in(model) == set()
    write_world(model, Recipe())
    assert not (model / "world.json").exists()
    write_world(model, Recipe(), ["code"])
    assert profiles_in(model) == {"code"}
    assert in_its_world(recipe := load(Recipe), model) is recipe
    assert fill_in_names(recipe, model, NoWorld(Settings())).profile == "code"
    write_world(model, Recipe(), ["code", "mhqa", "of an extension that is not loaded"])
    assert profiles_in(model) == {"code", "mhqa"}
    assert fill_in_names(recipe, model, NoWorld(Settings())).profile == "multi"


def test_a_world_of_a_model_that_is_not_known_here_is_one_line(model: Path) -> None:
    (model / "world.json").write_text('{"world": "gone", "settings": {}}')
    with pytest.raises(
        UserError,
        match=r"world\.json: unknown world 'gone': known are .*; it is of COA_EXTENSIONS=MODULE$",
    ):
        in_its_world(load(Recipe), model)
    write_world(model, load(Recipe, None, ["tasks.world=tiny"]))
    written = (model / "world.json").read_text()
    (model / "world.json").write_text(written.replace('"world": "tiny"', '"world": "gone"'))
    with pytest.raises(UserError, match=r"; it is of COA_EXTENSIONS=coa\.demo\.guest$"):
        in_its_world(load(Recipe), model)
    (model / "world.json").write_text('{"world": ')
    with pytest.raises(UserError, match=r"world\.json: can't be read"):
        in_its_world(load(Recipe), model)


def _written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_recipes_agent_does_not_replace_the_models_and_the_command_says_so(model: Path) -> None:
    assert caution_about_agent(load(Recipe), model, []) == ""
    said = ["agent.limits.max_turns=5"]
    assert caution_about_agent(load(Recipe, None, said), model, said) == ""
    recipe = load(Recipe, _written(model / "r.yaml", "agent: {grammar: enforce}"))
    assert as_trained(recipe, model, model / "out", []).agent == KEPT
    told = caution_about_agent(recipe, model, [])
    assert told.startswith(f"the recipe's section `agent` is not used: {model / 'agent.json'} has the settings")


def test_a_models_attempts_need_neither_the_recipes_tasks_nor_its_reward(model: Path) -> None:
    recipe = load(Recipe, None, ["tasks.path=gone.parquet", "tasks.profile=web", "rl.reward.formula=judge"])
    asked = as_trained(recipe, model, model / "out", [])
    assert (asked.tasks.path, asked.tasks.profile, asked.rl.reward.formula) == (None, "web", "grade")
    assert asked.run_dir == str(model / "out")


class Size(Enum):
    small = "s"


@dataclass(frozen=True)
class Mapped(Settings):
    size: Size = Size.small
    folder: Path = Path("maps")


def test_a_world_may_have_paths_and_enums_among_its_settings(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lend(monkeypatch, WORLDS, "mapped", type("MappedWorld", (NoWorld,), {"name": "mapped", "settings_type": Mapped}))
    write_world(model, load(Recipe, None, ["tasks.world=mapped", "world.folder=atlas"]))
    assert in_its_world(load(Recipe), model).world == Mapped(Size.small, Path("atlas"))
