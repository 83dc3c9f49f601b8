"""What is sent to a cluster as a job, and how its end is told; a real one is in tests/jobs/test_submit_real.py."""

import subprocess
from pathlib import Path

import pytest

from cluster.remote.jobs import Versions, difference, entrypoint, exit_status, runtime_env

HERE = Versions("2.60.0", "3.11.7")


def test_versions_that_differ_are_one_line_and_the_last_number_of_python_is_none() -> None:
    assert difference(HERE, HERE) == difference(HERE, Versions("2.60.0", "3.11.2")) == ""
    said = (
        "the cluster has {}, this machine Ray 2.60.0 and Python 3.11.7: the command may act otherwise there than here"
    )
    assert difference(HERE, Versions("2.60.0", "3.12.1")) == said.format("Ray 2.60.0 and Python 3.12.1")
    assert difference(HERE, Versions("2.59.0", "3.11.7")) == said.format("Ray 2.59.0 and Python 3.11.7")


@pytest.mark.parametrize("storage", ["~/my runs", "~", "{}/it's here"])
def test_a_command_finds_the_folders_of_the_cluster_beside_its_files(tmp_path: Path, storage: str) -> None:
    storage = storage.format(tmp_path)
    work, home, programs = (tmp_path / name for name in ("work", "home of", "bin"))
    for folder in (work, home, programs):
        folder.mkdir()
    # In place of Python: says what it was started with, and ends with a status of its own.
    (programs / "python").write_text(
        '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\npwd -P; cd runs; pwd -P; exit 7\n'
    )
    (programs / "python").chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home)}
    line = entrypoint(["train", "--recipe", "tiny", "a={b: 'c d'}"], storage)
    for _ in range(2):  # another job may have the same copy of the folder
        done = subprocess.run(
            ["sh", "-c", line], cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 7, done.stderr
    words = ["-m", "jobs.cli", "train", "--recipe", "tiny", "a={b: 'c d'}"]
    there = Path(storage.replace("~", str(home), 1))
    assert done.stdout.splitlines() == [*words, str(work), str(there / "runs")]
    assert (work / "models").resolve() == there / "models"
    assert list((there / "runs").iterdir()) == [], "a link that is there is not followed"


def test_the_environment_has_the_folder_and_plain_variables() -> None:
    environment = runtime_env(Path("/x"), None, {"COA_EXTENSIONS": "mine"})
    assert set(environment) == {"working_dir", "env_vars"}
    assert environment["env_vars"]["COA_EXTENSIONS"] == "mine"
    assert runtime_env(Path("/x"), Path("more.txt"), {})["pip"] == "more.txt"


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [("SUCCEEDED", 0, 0), ("FAILED", 2, 2), ("FAILED", -9, 137), ("FAILED", None, 1), ("STOPPED", None, 130)],
)
def test_the_exit_status_is_the_drivers(status: str, code: int | None, expected: int) -> None:
    assert exit_status(status, code) == expected
