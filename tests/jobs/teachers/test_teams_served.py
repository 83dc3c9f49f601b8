"""The kinds of teams on a language model that vLLM serves, and as scripted experts; a policy learns what they leave."""

import asyncio
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from actors.teachers.model_server import ModelServer, ModelServerConfig
from coa.distill.dataset.shards import read_rows
from coa.teams.store import read_transcripts
from jobs.recipe.find import RECIPES
from tests.support.tiny import make_model

pytestmark = pytest.mark.slow

RUNS = 60
"""So many that some are well-formed by chance."""
NAMES = [f"{first} {last}" for first in ("Adam", "Jade", "Leo", "Nora") for last in ("Rook", "Holt", "Grove", "Lind")]
SEARCHES = [f"<wiki_search> {name}</wiki_search>" for name in NAMES]
SOLVES = [*(f"<plan> look it up</plan>{search}" for search in SEARCHES), "<answer> Kerr</answer>"]
SCORES = ["<double_check> 2 nobody looked</double_check>", "<double_check> 4 page says so</double_check>"]
BATCH = 32
SAYS = {
    "planner": ["<plan> look it up</plan>", "<answer> Kerr</answer>"],
    "searcher": [*SEARCHES, "done"],
    "critic": ["<reflection> page says Kerr</reflection>"],
    "debater": SOLVES,
    "opponent": SCORES,
    "generator": SOLVES,
    "verifier": SCORES,
    "refiner": ["<answer> Kerr</answer>", "<answer> Voss</answer>"],
    "head": ["<plan> look it up</plan>", "<plan> 1. the town\n2. the baker</plan>", "<answer> Kerr</answer>"],
    "leaf": SOLVES[-8:],
    "judge": SCORES,
    "evolver": ["<reflection> look it up</reflection>"],
    "selector": SCORES,
    "child": SOLVES[-8:],
    "integrator": ["<double_check> 4 page says so</double_check><answer> Kerr</answer>"],
}
"""What a model with random weights may say in each role: it chooses."""
TEAMS: dict[str, tuple[str, ...]] = {
    "planner": ("planner", "searcher", "critic"),
    "debate": ("debater", "opponent"),
    "refine": ("generator", "verifier", "refiner"),
    "pyramid": ("head", "leaf", "judge"),
    "evolved": ("generator", "evolver", "selector", "child", "integrator"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of a tiny model with random weights."""
    model = make_model(tmp_path_factory.mktemp("model"), max_positions=8192)
    runner = asyncio.Runner()
    server = ModelServer(ModelServerConfig(model=str(model), name="tiny", max_model_len=8192), gone=lambda: None)
    yield runner.run(server.start())
    runner.run(server.stop())
    runner.close()


def recipe(folder: Path, team: str, models: dict[str, Any], roles: dict[str, Any]) -> Path:
    told = yaml.safe_load((RECIPES / "tiny.yaml").read_text())
    told |= {"run_dir": str(folder / "run"), "models": models}
    told["team"] = {"rules": team, "debaters": 3, "max_steps": 24, "roles": roles}
    told["world"] = {"families": ["mhqa"]}
    told["distill"] |= {"runs": RUNS, "keep": RUNS}
    told["distill"]["filters"]["right_answers_only"] = False
    told["agent"]["limits"]["max_tokens"] = 512
    told["sft"] |= {"steps": 2, "batch": BATCH}
    told["sft"]["learner"] |= {"ranks": 1}
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(told))
    return path


def coa(job: str, recipe: Path, *settings: str) -> None:
    command = [sys.executable, "-m", "jobs.cli", job, "--recipe", str(recipe), *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def models_of(team: str, served: str) -> dict[str, Any]:
    """A model for each role, which has its name."""
    return {
        role: {
            "endpoint": {
                "url": served,
                "name": "tiny",
                "temperature": 2.0,
                "max_tokens": 128,
                # The tags are special tokens of this model, which a server leaves out unless told.
                "extra": {"structured_outputs": {"choice": SAYS[role]}, "skip_special_tokens": False},
            }
        }
        for role in TEAMS[team]
    }


Distilled = Callable[[str, bool], Path]


@pytest.fixture(scope="module")
def distilled(served: str, tmp_path_factory: pytest.TempPathFactory) -> Distilled:
    """The run in which a team was distilled, of language models or of scripted experts; each once."""

    @functools.cache
    def distil(team: str, of_models: bool) -> Path:
        models = models_of(team, served) if of_models else {}
        folder = tmp_path_factory.mktemp(team)
        coa("distill", recipe(folder, team, models, {role: {"model": role} for role in models}))
        return folder / "run"

    return distil


@pytest.mark.parametrize("team", TEAMS)
def test_a_team_of_language_models_leaves_chains(distilled: Distilled, team: str) -> None:
    run = distilled(team, True)
    runs = list(read_transcripts(run / "teachers"))
    assert len(runs) == RUNS
    assert all(one.transcript.usage.tokens > 0 for one in runs)
    told = {role: f"{role}: tiny" for role in TEAMS[team]}
    assert all(dict(one.transcript.models) == told for one in runs)
    assert {row.team for row in read_rows(run / "data")} == {team}


@pytest.mark.parametrize("team", TEAMS)
def test_a_team_of_scripted_experts_does_too(distilled: Distilled, team: str) -> None:
    assert {row.team for row in read_rows(distilled(team, False) / "data")} == {team}


def test_a_policy_is_trained_on_what_all_of_them_left(distilled: Distilled, tmp_path: Path) -> None:
    data = [distilled(team, of_models) / "data" for team in TEAMS for of_models in (True, False)]
    coa("sft", recipe(tmp_path, "planner", {}, {}), f"sft.data=[{','.join(map(str, data))}]")
    assert {row.team for row in read_rows(tmp_path / "run" / "data")} == set(TEAMS)
    sft = json.loads((tmp_path / "run" / "checkpoints" / "sft.json").read_text())
    assert (sft["steps"], sft["samples"]) == (2, 2 * BATCH)
    assert (tmp_path / "run" / "checkpoints" / "sft-model" / "model.safetensors").exists()
