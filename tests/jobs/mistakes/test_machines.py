"""What a recipe needs and no machine has: it is refused before anything is started."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from coa.errors import UserError
from coa.serving.config import ServingConfig
from jobs.cli import main
from jobs.stages.serve import check_serving
from tests.support.mistakes import mistake


def test_gpus_that_this_machine_has_not_are_refused_before_ray_starts(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("cluster.resources._gpus", lambda: 0)
    monkeypatch.setattr("cluster.session.start", lambda **_: pytest.fail("Ray was started"))
    words = ["train", "--recipe", "tiny", "run_dir=run", "placement.engine_gpus=2", "session.cpus=4"]
    words += ["engine.tensor_parallel=2"]
    told = mistake(capfd, *words)
    assert told.endswith("2 GPU in all, there are 4 CPU on 1 node; no room for a rollout engine of 1 CPU and 2 GPU")
    assert not (here / "run").exists()
    assert main([*words, "--dry-run"]) == 2
    assert capfd.readouterr().err == f"coa: {told}\n"


def test_a_malformed_address_of_a_cluster_is_found_by_a_dry_run_too(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "foo")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert told == "the cluster's address 'foo' (RAY_ADDRESS) is not host:port, such as 10.0.0.7:6379"
    assert main(["train", "--recipe", "tiny", "run_dir=run", "--dry-run"]) == 2
    assert capfd.readouterr().err == f"coa: {told}\n"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["train", "--recipe", "tiny", "run_dir=run", "--dry-run"]) == 0
    assert (
        "no problem found in what was looked at, but the cluster at 127.0.0.1:1 was not asked;"
        in capfd.readouterr().out
    )
    assert list(here.iterdir()) == []


def test_a_port_that_can_not_be_served_at(here: Path) -> None:
    with pytest.raises(UserError, match=r"^serving\.port is 70000, expected 0 to 65535$"):
        check_serving(ServingConfig(port=70000))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^port {port} of 127\.0\.0\.1 is taken$"):
            check_serving(ServingConfig(port=port))


def test_more_than_the_cluster_has(here: Path) -> None:
    command = [sys.executable, "-m", "jobs.cli", "train", "--recipe", "tiny", "run_dir=run", "session.cpus=2"]
    done = subprocess.run([*command, "placement.engines=3"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "coa: the recipe needs more than the cluster has or can add: 3.75 CPU in all, there are 2 CPU on 1 node; "
        "no room for a rollout engine of 1 CPU\n"
    )
    assert list(here.iterdir()) == []
