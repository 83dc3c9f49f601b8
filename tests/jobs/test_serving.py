"""The server by import path, as Ray Serve's own commands and KubeRay take it."""

import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from ray import cloudpickle

from coa.agent.profiles import PROFILES
from coa.errors import UserError
from jobs import serving
from jobs.run.agent_file import write_agent
from tests.jobs.test_serve import ASKED, READY_S, greedily, greedy, wait_until_ready
from tests.project.test_docs import ROOT, blocks
from tests.support.patience import PATIENCE_S, soon
from tests.support.ports import free_port
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


# --- with Ray's own commands ------------------------------------------------------------------------------------------

SMALL = ["serving.profile=code", "engine.kv_cache_gib=0.25", "placement.engine_cpus=0.5", "placement.tool_cpus=0.25"]
HELD = ["agent.grammar=enforce", "agent.limits.max_turn_tokens=96", "agent.limits.max_tokens=448"]


@dataclass(frozen=True)
class Cluster:
    """A cluster that somebody has started before, and the address of Serve in it."""

    gcs: str
    dashboard: str
    url: str
    folder: Path

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """One of Ray's commands."""
        with (self.folder / f"{words[0]}-{words[1]}.log").open("w") as log:
            return subprocess.Popen([Path(sys.executable).parent / words[0], *words[1:]], stdout=log, stderr=log)

    def run(self, *words: str) -> None:
        assert self.start(*words).wait(120) == 0, (self.folder / f"{words[0]}-{words[1]}.log").read_text()


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Unset, the mode depends on what was run on the machine before.
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
    ports = [free_port() for _ in range(3)]
    # Sockets have short paths; and the file that names the latest cluster of a machine is not this one's to write.
    with tempfile.TemporaryDirectory(prefix="coa", dir="/tmp", ignore_cleanup_errors=True) as folder:
        gcs, dashboard, http = (f"127.0.0.1:{port}" for port in ports)
        found = Cluster(gcs, f"http://{dashboard}", f"http://{http}", Path(folder))
        where = ["--node-ip-address=127.0.0.1", f"--port={ports[0]}", f"--dashboard-port={ports[1]}"]
        size = ["--num-cpus=2", f"--object-store-memory={200 << 20}", f"--temp-dir={folder}"]
        head = found.start("ray", "start", "--head", "--block", *where, *size)
        try:
            wait_until_it_listens(found.dashboard, head)
            yield found
        finally:
            processes = psutil.Process(head.pid).children(recursive=True)
            head.terminate()
            head.wait(60)
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def wait_until_it_listens(url: str, process: "subprocess.Popen[bytes]") -> None:
    def listens() -> bool:
        assert process.poll() is None
        with suppress(httpx.TransportError):
            return bool(httpx.get(url, timeout=READY_S))
        return False

    assert soon(listens), f"nobody listens at {url}"


def check_answers(url: str, model: Path) -> None:
    """Both the agent and the model alone."""
    agent = httpx.post(f"{url}/v1/chat/completions", json={"model": "demo", "messages": ASKED}, timeout=120)
    assert agent.json()["choices"][0]["finish_reason"] in ("stop", "length")
    alone = httpx.post(f"{url}/v1/chat/completions", json=greedily("demo", "sells 14", 8), timeout=120).json()
    assert alone["choices"][0]["message"]["content"] == greedy(model, "sells 14", 8)


@pytest.mark.slow
def test_rays_own_commands_run_and_deploy_the_server_by_its_import_path(cluster: Cluster, model: Path) -> None:
    host, port = cluster.url.removeprefix("http://").split(":")
    address = f"--address={cluster.gcs}"
    cluster.run("serve", "start", address, f"--http-host={host}", f"--http-port={port}")
    overrides = f"overrides={' '.join((*SMALL, *HELD))}"
    run = cluster.start("serve", "run", address, "--name=coa", "jobs.serving:app", f"model={model}", overrides)
    wait_until_ready(run, cluster.url, cluster.folder / "serve-run.log")
    check_answers(cluster.url, model)
    run.send_signal(signal.SIGINT)
    assert run.wait(120) == 0

    [text] = [block for block in blocks(ROOT / "docs" / "serving.md", "yaml") if "import_path" in block]
    config = yaml.safe_load(text)
    config["http_options"] = {"host": host, "port": int(port)}
    config["applications"][0]["args"] = {"model": str(model), "overrides": [*SMALL, *HELD]}
    file = cluster.folder / "serve.yaml"
    file.write_text(yaml.safe_dump(config))
    cluster.run("serve", "deploy", str(file), f"--address={cluster.dashboard}")
    deadline = time.monotonic() + READY_S
    while not (said := ready(cluster.url)).get("ready"):
        assert time.monotonic() < deadline, said
        time.sleep(0.5)
    assert said == {"ready": True, "replicas": 1, "status": "HEALTHY", "version": 0}
    check_answers(cluster.url, model)


def ready(url: str) -> dict[str, Any]:
    """What /readyz says; nothing while nobody is there."""
    with suppress(httpx.TransportError, ValueError):
        found = httpx.get(f"{url}/readyz", timeout=PATIENCE_S).json()
        return found if isinstance(found, dict) else {}
    return {}
