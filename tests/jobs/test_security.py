"""What a run listens at, and that no secret of its environment is in what it leaves (docs/security.md)."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from coa.config import load
from coa.errors import UserError
from coa.http.addresses import has_password
from jobs.recipe.checks import check_secrets
from jobs.recipe.schema import Recipe
from tests.support.sockets import DRIVER, Listening, listening, unnamed

COA = (sys.executable, "-m", "jobs.cli")
PLANTED = {name: f"planted-{secrets.token_hex(12)}" for name in ("SERPER_API_KEY", "OPENAI_API_KEY", "HF_TOKEN")}
PLANTED["WANDB_API_KEY"] = secrets.token_hex(20)
OPEN = {"gcs_server", "raylet", "dashboard/agent.py", "ray::DashboardAgent", "runtime_env/agent/main.py"}
"""Parts of Ray that listen at every address, besides its workers."""
SETTINGS = (
    *("distill.runs=120", "teaching.wave=60", "sft.steps=24", "sft.batch=8", "rl.steps=4", "rl.group=2"),
    *("rl.window.groups_per_batch=4", "evaluation.samples=2", "wandb.mode=offline"),
)


@pytest.mark.parametrize(
    "key", ["tools.search.url=http://x/?key={}", "models.m.endpoint={{url: 'http://x/', name: '{}'}}"]
)
def test_a_setting_with_a_secret_in_it_is_refused(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("MY_API_KEY", PLANTED["HF_TOKEN"])
    check_secrets(load(Recipe, None, [key.format("another")]))
    with pytest.raises(UserError, match=r"holds the value of \$MY_API_KEY") as raised:
        check_secrets(load(Recipe, None, [key.format(PLANTED["HF_TOKEN"])]))
    assert PLANTED["HF_TOKEN"] not in str(raised.value)


def test_an_address_with_a_password_is_refused() -> None:
    assert has_password("https://me:s3cret@x/v1")
    assert not any(has_password(text) for text in ("https://me@x/v1", "a: b@c", "http://[", "http://x/@:"))
    with pytest.raises(UserError, match=r"tools\.judge\.url is http://x/v1 with a password"):
        check_secrets(load(Recipe, None, ["tools.judge.url=http://me:s3cret@x/v1"]))


@dataclass(frozen=True)
class Run:
    folder: Path
    ray: Path
    status: int
    sockets: set[Listening]
    token: str
    strangers: list[str]
    """What Ray's head said to callers without the token."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A small run with keys in its environment, and what listened meanwhile."""
    folder, ray = tmp_path_factory.mktemp("security"), Path(tempfile.mkdtemp(prefix="coa-ray-"))
    tasks = folder / "sums.jsonl"
    rows = [{"question": f"What is {a} * {b} - 4 ?", "answer": str(a * b - 4)} for a in range(11, 19) for b in (2, 3)]
    tasks.write_text("".join(f"{json.dumps(row | {'profile': 'code'})}\n" for row in rows))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "WANDB_"))}
    process = subprocess.Popen(
        [*COA, "train", "--recipe", "tiny", f"run_dir={folder / 'run'}", f"tasks.path={tasks}", *SETTINGS],
        env={**inherited, **PLANTED, "RAY_TMPDIR": str(ray)},
    )
    sockets, token, strangers = set[Listening](), "", list[str]()
    while process.poll() is None:
        with suppress(psutil.Error):
            sockets |= set(listening(process.pid))
            heads = [one for one in sockets if one.program == "gcs_server"]
            if heads and not token:
                children = psutil.Process(process.pid).children()
                token = next((found for one in children if (found := one.environ().get("RAY_AUTH_TOKEN"))), "")
                strangers = [asks(heads[0].port, **how) for how in STRANGERS]
        time.sleep(0.5)
    yield Run(folder, ray, process.returncode, sockets, token, strangers)
    shutil.rmtree(ray, ignore_errors=True)


STRANGERS = ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64})
ASK = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_keys(b"", b"x", timeout=9)
"""


def asks(port: int, **variables: str) -> str:
    """What Ray's head says to one who would read its table; empty where it answers."""
    words = [sys.executable, "-c", ASK, f"127.0.0.1:{port}"]
    environment = {**os.environ, **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stderr if done.returncode else ""


@pytest.mark.slow
def test_only_what_the_page_names_listens_beyond_this_machine(run: Run) -> None:
    assert run.status == 0
    named = {one.program for one in run.sockets if not one.is_local}
    assert "gcs_server" in named
    assert {"ray::RolloutEngine", "ray::ToolExecutor", "ray::RayTrainWorker"} <= named
    assert unnamed(run.sockets, OPEN) == []


def test_a_second_port_of_a_worker_is_found() -> None:
    """As vLLM would open one inside of an engine."""
    engine = Listening("ray::RolloutEngine", "0.0.0.0", 40001, 7)
    before = Listening("ray::IDLE", "::", 40001, 7)
    learner = [Listening("ray::RayTrainWorker", "0.0.0.0", port, 8) for port in (40002, 40003)]
    allowed = [engine, before, *learner, Listening("gcs_server", "0.0.0.0", 6379, 9)]
    assert unnamed([*allowed, Listening("ray::RolloutEngine", "127.0.0.1", 40004, 7)], OPEN) == []
    control = Listening("ray::RolloutEngine", "192.0.2.2", 40004, 7)
    assert control in unnamed([*allowed, control], OPEN)
    command = [Listening(DRIVER, "::", port, 11) for port in (40006, 40007)]
    assert unnamed([*allowed, command[0]], OPEN) == []
    assert unnamed([*allowed, *command], OPEN) == command
    metrics, page = (Listening("dashboard/dashboard.py", "0.0.0.0", port, 12) for port in (44227, 8265))
    assert unnamed([*allowed, metrics, page], OPEN) == [page]
    core = Listening("VLLM", "0.0.0.0", 40005, 10)
    assert unnamed([*allowed, core], OPEN) == [core]


def test_ports_are_those_of_the_process_that_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        [found] = [one for one in listening(os.getpid()) if one.port == port]
    assert (found.address, found.pid, found.is_local) == ("127.0.0.1", os.getpid(), True)


@pytest.mark.slow
def test_who_lacks_the_sessions_token_gets_nowhere(run: Run) -> None:
    assert len(run.token) == 64
    assert len(run.strangers) == 2
    assert all("InvalidAuthToken" in said or "Unauthenticated" in said for said in run.strangers), run.strangers


@pytest.mark.slow
def test_no_secret_is_in_what_a_run_leaves(run: Run) -> None:
    wanted = {**PLANTED, "the token": run.token}
    files = [path for root in (run.folder, run.ray) for path in root.rglob("*") if path.is_file()]
    assert {"config.yaml", "report.html", "driver.log"} <= {path.name for path in files}
    found = {name: str(path) for path in files for name, value in wanted.items() if value.encode() in path.read_bytes()}
    assert found == {}
