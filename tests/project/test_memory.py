"""The memory that a command and its processes hold together, as the test of a pretrained model counts it."""

import sys
from pathlib import Path

import pytest

from tests.support.memory import run_watched

pytestmark = pytest.mark.slow
MIB = 200
HOLDS = f"import time; held = bytearray({MIB} << 20); time.sleep(1)"
MAPS = """
import mmap, time
with open("file", "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:
    sum(pages[at] for at in range(0, len(pages), 4096))
    time.sleep(1)
"""
TOGETHER = """
import subprocess, sys
for one in [subprocess.Popen([sys.executable, "-c", program]) for program in sys.argv[1:]]:
    one.wait()
"""


@pytest.mark.parametrize(
    ("programs", "held"), [([HOLDS], 1), ([HOLDS, HOLDS], 2), ([MAPS], 0), ([HOLDS, MAPS], 1)], ids=range(4)
)
def test_what_processes_hold_at_one_time_counts_and_pages_of_files_do_not(
    programs: list[str], held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(bytes(MIB << 20))
    watched = run_watched([sys.executable, "-c", TOGETHER, *programs], output=tmp_path / "output", limit_s=60)
    assert watched.returncode == 0
    assert watched.together * 1024 == pytest.approx(held * MIB, abs=MIB / 4)
