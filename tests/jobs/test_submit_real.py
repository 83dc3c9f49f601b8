"""`coa submit` against a cluster that `ray start --head` has started, with a token and without."""

import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.test_sent import PLANTED
from tests.support.clusters import Cluster, head

pytestmark = pytest.mark.slow

KEY = "sk-planted-where-nobody-may-see-it"
MINE = f"mine-{secrets.token_hex(16)}"
"""What is in each file with secrets of the user's folder, and in variables of the user's."""
MY_KEYS = dict.fromkeys(("OPENAI_API_KEY", "HF_TOKEN", "DB_PASS", "AWS_SECRET_ACCESS_KEY"), MINE)
DEADLY = "import os\nif os.environ.get('PLACE') == 'cluster': os.kill(os.getpid(), 9)\n"
"""An extension that ends the process that imports it, there only."""
SMALL = ("distill.runs=120", "teaching.wave=60", "sft.steps=100000", "sft.batch=8")


in_both_modes = pytest.mark.parametrize("cluster", ["token", "disabled"], indirect=True, scope="module")
with_a_token = pytest.mark.parametrize("cluster", ["token"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    token = secrets.token_hex(16) if request.param == "token" else ""
    with head(request.param, token=token, PLACE="cluster", SERPER_API_KEY=KEY) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder, which is sent, beside the cluster's own."""
    (tmp_path / "mine" / "runs").mkdir(parents=True)
    (tmp_path / "mine" / "runs" / "large.bin").write_text("not sent")
    for name in PLANTED:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(MINE)
    return tmp_path / "mine"


def submit(cluster: Cluster, folder: Path, *words: str, **variables: str) -> "subprocess.Popen[str]":
    options = ["--address", cluster.dashboard, "--storage", str(folder.parent / "storage")]
    return subprocess.Popen(
        [sys.executable, "-m", "jobs.cli", "submit", *options, *words],
        cwd=folder,
        env={**cluster.environment, "PLACE": "here", **MY_KEYS, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def own_files(cluster: Cluster) -> list[str]:
    """For a second node on this machine: the nodes would delete each other's copies of the folder."""
    return [f"--temp-dir={cluster.folder / 'two'}"]


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@in_both_modes
def test_a_command_is_followed_to_its_end(cluster: Cluster, folder: Path) -> None:
    (folder / "mine.yaml").write_text("tasks: {world: tiny}\nrun_dir: runs/mine\n")
    status, out, err = ended(submit(cluster, folder, "train", "--recipe", "./mine.yaml", "--dry-run"))
    assert status == 0, err
    assert [line.split()[-2:] for line in err.splitlines()] == [["1", "file"], ["mine.yaml", "(settings)"]]
    assert out.startswith("raysubmit_")
    assert "train: runs/mine" in out
    assert re.search(
        r"no problem found in what was looked at, but the cluster at \S+ was not asked; nothing was started", out
    )


def test_a_run_uses_a_node_that_has_joined(folder: Path) -> None:
    """With a token, which head, worker node, driver and command line have. The head has no CPU for work."""
    token = secrets.token_hex(16)
    with head("token", token=token, cpus=0, PLACE="cluster") as cluster:
        cluster.join(cpus=4, words=own_files(cluster))
        words = ("distill", "--recipe", "tiny", "run_dir=runs/small", "distill.runs=60", "teaching.wave=30")
        status, out, err = ended(submit(cluster, folder, *words))
    assert status == 0, out + err
    assert (folder.parent / "storage" / "runs" / "small" / "checkpoints" / "distill.json").exists()


@with_a_token
def test_a_mistake_that_is_found_there_has_its_own_status(cluster: Cluster, folder: Path) -> None:
    status, out, err = ended(submit(cluster, folder, "evaluate", "--model", "models/none", "--tasks", "none.jsonl"))
    assert status == 2
    assert "coa: models/none: no model there" in out
    assert "ended with status 2: Job entrypoint command failed with exit code 2" in err


@with_a_token
def test_a_job_whose_driver_dies_has_failed(cluster: Cluster, folder: Path) -> None:
    (folder / "deadly.py").write_text(DEADLY)
    status, out, err = ended(submit(cluster, folder, "recipe", COA_EXTENSIONS="deadly"))
    assert status == 137, out
    assert "ended with status 137" in err


@with_a_token
def test_one_with_another_token_is_told_so(cluster: Cluster, folder: Path) -> None:
    for variables in ({"RAY_AUTH_TOKEN": secrets.token_hex(16)}, {"RAY_AUTH_MODE": "disabled"}):
        status, out, err = ended(submit(cluster, folder, "recipe", **variables))
        assert (status, out) == (2, "")
        assert err.startswith(f"coa: {cluster.dashboard} asks for another token: set RAY_AUTH_MODE=token")
        assert err.count("\n") == 1


@with_a_token
def test_what_is_interrupted_here_is_stopped_there_and_leaves_nothing_running(cluster: Cluster, folder: Path) -> None:
    before = {process.pid for process in cluster.processes()}
    job = submit(cluster, folder, "train", "--recipe", "tiny", "run_dir=runs/small", *SMALL)
    run = folder.parent / "storage" / "runs" / "small"
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not (metrics.exists() and '"stage": "sft"' in metrics.read_text()):
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.5)
    job.send_signal(signal.SIGINT)
    status, out, err = ended(job)
    assert status == 130
    assert "stopping raysubmit_" in err
    # It ended by itself, as it does where it is interrupted, and was not killed.
    name = out.split()[0]
    log = (run / "logs" / "driver.log").read_text()
    left = wait_for_end(cluster, before)
    assert left == [], left
    status, told, _ = ended(submit(cluster, folder, "--follow", name))
    assert status == 130
    assert "interrupted; the same command resumes" in told, told
    assert KEY not in log + told + out


STAYS = "_AutoscalingCoordinatorActor"
"""Ray's own actor, which the first learners on a cluster start, and which stays until the cluster's end."""


def wait_for_end(cluster: Cluster, before: set[int]) -> list[str]:
    """What still runs of a job after a while; Ray keeps idle workers, which hold nothing."""
    deadline = time.monotonic() + 60
    while True:
        left = [process for process in cluster.processes() if process.pid not in before]
        names = [" ".join(process.cmdline()).strip()[:200] for process in left if process.is_running()]
        busy = [name for name in names if "ray::" in name and not any(word in name for word in ("IDLE", "Job", STAYS))]
        busy += [name for name in names if "VLLM" in name or "jobs.cli" in name]
        if not busy or time.monotonic() > deadline:
            return busy
        time.sleep(1)


@in_both_modes
def test_no_secret_is_in_what_the_cluster_has_and_tells(cluster: Cluster, folder: Path) -> None:
    """Nothing of the user's secrets is in any file of the cluster, packages and Ray's logs among them, nor in a job's
    record or log, where the whole folder was to be sent; and the nodes' own variable is in no record and no log."""
    import requests

    (folder / "notes.md").write_text("sent")
    status, out, err = ended(submit(cluster, folder, "--send", ".", "train", "--recipe", "tiny", "--dry-run"))
    assert status == 0, err
    assert MINE not in out + err

    mode, token = (cluster.environment.get(name, "") for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"))
    headers = {"Authorization": f"Bearer {token}"} if mode == "token" else {}
    told = requests.get(f"{cluster.dashboard}/api/jobs/", headers=headers, timeout=30).text
    assert "raysubmit_" in told
    assert KEY not in told
    assert MINE not in told
    job = out.split()[0]
    log = requests.get(f"{cluster.dashboard}/api/jobs/{job}/logs", headers=headers, timeout=30).text
    assert "train:" in log
    assert MINE not in log
    notes = 0
    for path in (*cluster.folder.rglob("*"), *(folder.parent / "storage").rglob("*")):
        if path.is_file() and not path.is_symlink():
            assert MINE.encode() not in path.read_bytes(), path
            notes += path.name == "notes.md"
    assert notes, "where the files that were sent are"
    for path in cluster.folder.rglob("*"):
        if path.is_file() and path.suffix in (".log", ".out", ".err", ".txt", ".json"):
            text = path.read_text(errors="replace")
            assert KEY not in text, path
            assert not token or token not in text, path


@pytest.mark.skipif(os.geteuid() != 0, reason="a node with a disk of its own needs a mount")
def test_a_folder_that_a_node_does_not_see_is_told_of_in_one_line(folder: Path) -> None:
    storage = folder.parent / "storage"
    storage.mkdir()
    with head("disabled", PLACE="cluster") as cluster:
        own_disk = f'mount -t tmpfs none {storage} && exec "$@"'
        cluster.join("unshare", "--mount", "sh", "-c", own_disk, "sh", words=own_files(cluster))
        status, out, err = ended(submit(cluster, folder, "train", "--recipe", "tiny", "run_dir=runs/small", *SMALL))
    assert status == 2, out + err
    [line] = [line for line in out.splitlines() if line.startswith("coa: ")]
    assert line.startswith(f"coa: run_dir {storage}/runs/small is not shared: node ")
    assert not (storage / "runs" / "small").exists()
