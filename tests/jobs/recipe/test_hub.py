"""Models that are named as on a hub are looked for before the first stage."""

import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from coa.config import load
from coa.errors import UserError
from jobs.recipe.find import find_recipe
from jobs.recipe.hub import hub_models, require_hub_models
from jobs.recipe.schema import Recipe

NAME = "nobody/no-such-model"


def recipe(folder: Path, *settings: str) -> Recipe:
    return load(Recipe, find_recipe("tiny"), [f"run_dir={folder}", *settings])


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No hub is asked by accident, and its cache is empty."""
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("the hub was asked"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))


def answers(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def urlopen(request: urllib.request.Request, timeout: float) -> None:
        assert request.full_url.endswith(f"/{NAME}/resolve/main/config.json")
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", urlopen)


def status(code: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("", code, "", Message(), None)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (status(401), "no such model on the Hugging Face hub, unless it is private"),
        (status(403), "the Hugging Face hub gives access only on request"),
        (status(404), "no such model with a config.json on the Hugging Face hub"),
        (urllib.error.URLError("Name or service not known"), "the Hugging Face hub can't be reached: Name or service"),
        (TimeoutError("timed out"), "the Hugging Face hub can't be reached: timed out"),
    ],
)
def test_a_model_that_no_hub_has_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    answers(monkeypatch, error)
    with pytest.raises(UserError) as refused:
        require_hub_models(recipe(tmp_path, f"model.path={NAME}"))
    assert str(refused.value).startswith(f"model.path {NAME}: there is no such folder, and {said}")


def test_a_hub_that_is_busy_refuses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, status(503))
    require_hub_models(recipe(tmp_path, f"model.path={NAME}"))


def test_without_a_network_the_cache_alone_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match="no such model in the cache"):
        require_hub_models(recipe(tmp_path, f"model.path={NAME}"))


def test_a_name_that_no_hub_can_have_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model of the Hugging Face hub can have this name"):
        require_hub_models(recipe(tmp_path, "model.path='my model'"))


def test_a_finished_stage_needs_its_models_no_more(tmp_path: Path) -> None:
    served = ("models.t.serve.model=a/teacher", "rl.on_policy.teacher=a/scorer", f"model.path={NAME}")
    everything = [("model.path", NAME), ("rl.on_policy.teacher", "a/scorer"), ("models.t.serve.model", "a/teacher")]
    assert list(hub_models(recipe(tmp_path, *served))) == everything
    assert list(hub_models(recipe(tmp_path))) == []
    (tmp_path / "checkpoints" / "start").mkdir(parents=True)
    (tmp_path / "checkpoints" / "distill.json").write_text("{}")
    assert list(hub_models(recipe(tmp_path, *served))) == everything[1:2]
