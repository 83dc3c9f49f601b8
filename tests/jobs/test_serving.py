"""The server by import path, as Ray Serve's own commands and KubeRay take it."""

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray import cloudpickle

from coa.agent.profiles import PROFILES
from coa.errors import UserError
from jobs import serving
from jobs.run.agent_file import write_agent
from tests.project.test_docs import ROOT, blocks
from tests.support.tiny import AGENT, make_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("serving") / "demo" / "model")
    write_agent(folder, AGENT)
    return folder


def bound(application: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Deployment, positional arguments and keywords of an application."""
    found = application._bound_deployment
    return found, found.init_args, found.init_kwargs


def test_the_builder_makes_the_server_of_typed_arguments(model: Path) -> None:
    words = "serving.name=berg serving.max_replicas=3 agent.limits.max_turns=2"
    deployment, args, named = bound(serving.app(serving.Arguments(model=str(model), overrides=words)))
    assert args == (str(model),)
    assert (named["config"].name, named["config"].profile) == ("berg", "multi")
    assert named["agent"].limits.max_turns == 2
    assert named["agent"].limits.max_tokens == AGENT.limits.max_tokens, "as the model's agent.json says"
    assert deployment._deployment_config.autoscaling_config.max_replicas == 3
    sent = cloudpickle.dumps(named)  # pyright: ignore[reportPrivateImportUsage]
    assert pickle.loads(sent).keys() == named.keys(), "it goes to other processes"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("serving.profile=code", {"code", "math", "direct"}),
        ("serving.profile=web", {"code", "math", "direct", "web"}),
        ("tools.search.url=http://127.0.0.1:1 tools.crawl.open_web=true", {"code", "math", "direct", "web", "multi"}),
        ("serving.profiles=[web,code]", {"code", "web"}),
        ("tasks.world=tiny", {*PROFILES}),
    ],
)
def test_profiles_are_offered_whose_tools_there_are_and_the_one_that_is_served(
    model: Path, words: str, offered: set[str]
) -> None:
    _, _, named = bound(serving.app(serving.Arguments(model=str(model), overrides=words)))
    assert {*named["config"].profiles} == offered


def test_arguments_that_are_wrong_are_told(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model there"):
        serving.app(serving.Arguments(model=str(tmp_path)))
    with pytest.raises(UserError, match="max_replica"):
        serving.app(serving.Arguments(model=str(model), overrides=["serving.max_replica=3"]))
    with pytest.raises(UserError, match="nobody"):
        serving.app(serving.Arguments(model=str(model), overrides=["serving.profiles=[web,nobody]"]))
    with pytest.raises(ValueError, match="modle"):
        serving.Arguments(model=str(model), modle="x")  # pyright: ignore[reportCallIssue]


def test_the_configuration_of_the_docs_builds(model: Path) -> None:
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as build
    from ray.serve.schema import ServeDeploySchema

    [text] = [block for block in blocks(ROOT / "docs" / "serving.md", "yaml") if "import_path" in block]
    found = ServeDeploySchema.model_validate(yaml.safe_load(text))
    routes = {}
    for one in found.applications:
        module, _, name = one.import_path.partition(":")
        builder = getattr(sys.modules[module], name)
        assert module == serving.__name__
        application = build(builder, {**one.args, "model": str(model)} if one.args else {})
        routes[one.route_prefix] = bound(application)[0].name
    assert routes == {"/": "afm", "/readyz": "probe"}
