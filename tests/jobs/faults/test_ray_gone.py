"""A run whose Ray is killed says so, and the same command goes on."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

SMALL = ("distill.runs=200", "teaching.wave=100", "sft.steps=100000", "sft.batch=8")


@pytest.mark.slow
@pytest.mark.parametrize("part", ["gcs_server", "raylet"])
def test_a_run_whose_ray_is_killed_ends_with_a_line(tmp_path: Path, part: str) -> None:
    command = [sys.executable, "-m", "jobs.cli", "train", "--recipe", "tiny", f"run_dir={tmp_path / 'run'}", *SMALL]
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("w") as written, err.open("w") as said:
        run = psutil.Popen(command, stdout=written, stderr=said, start_new_session=True)
    children: list[psutil.Process] = []
    try:
        deadline = time.monotonic() + 240
        while "sft " not in out.read_text():
            assert run.poll() is None, err.read_text()
            assert time.monotonic() < deadline, out.read_text()
            time.sleep(0.5)
        children = run.children(recursive=True)
        [victim] = [one for one in children if one.name() == part]
        victim.kill()
        assert run.wait(240) == 1
        psutil.wait_procs(children, timeout=30)
        *_, last = err.read_text().splitlines()
        assert last.startswith("coa: train ")
        assert last.endswith("the same command resumes") or "(see " in last
    finally:
        for one in (*children, run):
            with suppress(psutil.Error, subprocess.SubprocessError):
                one.kill()
