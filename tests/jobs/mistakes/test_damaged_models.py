"""A model whose folder is damaged is refused by the commands that load it, before anything starts."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from coa.errors import UserError
from jobs.cli import main
from jobs.run.agent_file import write_agent
from jobs.serving import Arguments, app
from tests.support.mistakes import mistake
from tests.support.tiny import AGENT, make_model

WEIGHTS, LIMIT = "model.safetensors", "agent.limits.max_tokens=192"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 538090408\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("models") / "whole")
    write_agent(folder, AGENT)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for command in ("rl", "serve"):
        monkeypatch.setattr(f"jobs.commands.{command}.in_session", lambda *_, **__: pytest.fail("it started"))
    return tmp_path


def without_a_tensor(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    del tensors["model.norm.weight"]
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1000])


def pointer(folder: Path) -> None:
    (folder / WEIGHTS).write_text(POINTER)


def no_weights(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 128}))


def cut_config(folder: Path) -> None:
    (folder / "config.json").write_text((folder / "config.json").read_text()[:100])


def cut_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text((folder / "tokenizer.json").read_text()[:100])


DAMAGES: dict[Callable[[Path], None], str] = {
    without_a_tensor: "{}: its weights do not fit its config.json: 1 tensor is missing: model.norm.weight [64]",
    cut: "{}/model.safetensors: cut short or damaged: ",
    pointer: "{}/model.safetensors: a git-LFS pointer in place of the file: fetch it with `git lfs pull`",
    no_weights: "{}: no weights there (neither model.safetensors nor model.safetensors.index.json)",
    of_another_size: "{}: its weights do not fit its config.json: ",
    cut_config: "{}/config.json: not JSON: ",
    cut_tokenizer: "{}: no tokenizer there that can be read: ",
}
damages = pytest.mark.parametrize(("damage", "said"), DAMAGES.items(), ids=lambda one: getattr(one, "__name__", ""))


@damages
def test_reinforcement_refuses_the_model_that_it_begins_at(
    whole: Path, here: Path, capfd: pytest.CaptureFixture[str], damage: Callable[[Path], None], said: str
) -> None:
    model = Path(shutil.copytree(whole, here / "m"))
    damage(model)
    words = ("rl", "--recipe", "tiny", "run_dir=run", "sft.steps=0", f"model.path={model}", LIMIT)
    assert mistake(capfd, *words).startswith("model.path " + said.format(model))
    for check in ("--check", "--dry-run"):
        assert main([*words, check]) == 2
        assert str(model) in (told := capfd.readouterr().err)
        assert told.count("\n") == 1
    assert [path.name for path in here.iterdir()] == ["m"]


@damages
def test_reinforcement_refuses_the_runs_own_fine_tuned_model(
    whole: Path, here: Path, capfd: pytest.CaptureFixture[str], damage: Callable[[Path], None], said: str
) -> None:
    """As a run's folder was copied or committed."""
    checkpoints = here / "run" / "checkpoints"
    model = Path(shutil.copytree(whole, checkpoints / "sft-model"))
    (checkpoints / "sft.json").write_text("{}")
    damage(model)
    told = mistake(capfd, "rl", "--recipe", "tiny", "run_dir=run", LIMIT)
    assert told.startswith(said.format("run/checkpoints/sft-model"))
    assert [path.name for path in (here / "run").iterdir()] == ["checkpoints"]


@damages
def test_serving_refuses_a_model_and_that_of_a_run_which_it_follows(
    whole: Path, here: Path, capfd: pytest.CaptureFixture[str], damage: Callable[[Path], None], said: str
) -> None:
    model = Path(shutil.copytree(whole, here / "run" / "checkpoints" / "sft-model"))
    damage(model)
    folder = "run/checkpoints/sft-model"
    for words in (("--model", folder), ("--model", folder, "--check"), ("--follow", "run")):
        assert mistake(capfd, "serve", *words, "serving.port=0").startswith(said.format(folder))
    with pytest.raises(UserError) as caught:
        app(Arguments(model=folder))
    assert str(caught.value).startswith(said.format(model))
    assert [path.name for path in here.iterdir()] == ["run"]


def test_a_whole_model_of_ones_own_is_looked_at_when_a_run_goes_on(
    whole: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    checkpoints = here / "run" / "checkpoints"
    shutil.copytree(whole, checkpoints / "sft-model")
    (checkpoints / "sft.json").write_text("{}")
    words = ["rl", "--recipe", "tiny", "run_dir=run", LIMIT, "--dry-run"]
    assert main(words) == 0
    assert "run/checkpoints/sft-model: configuration, weights, tokenizer and chat template" in capfd.readouterr().out
    (checkpoints / "sft-model" / WEIGHTS).unlink()
    (checkpoints / "rl.json").write_text("{}")
    assert main(words) == 0, "reinforcement has ended, and loads it no more"
