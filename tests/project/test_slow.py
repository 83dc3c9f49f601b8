"""The parts of the slow tests: each file is in one of them, and what is missing is an error."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.slow import PARTS, RANDOM, ROOT, minutes, part_of


def test_each_file_with_slow_tests_has_a_part() -> None:
    files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    marked = [file for file in files if re.search(r"pytest\.mark\.slow\b", (ROOT / file).read_text())]
    assert [file for file in marked if part_of(file) is None] == []
    assert {part_of(file) for file in marked} == set(PARTS) - {RANDOM}


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("tests/benchmarks/test_speed.py", "core"),
        ("tests/benchmarks/chaos/test_chaos.py", "chaos"),
        ("tests/jobs/test_serve_load.py", "serve"),
        ("tests/jobs/test_nothing.py", None),
    ],
)
def test_the_longest_beginning_of_a_path_is_its_part(file: str, part: str | None) -> None:
    assert part_of(file) == part


def test_the_nightly_run_has_all_parts() -> None:
    [parts] = re.findall(r"^part \?= (.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert parts.split() == list(PARTS)
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    assert rows == list(PARTS)


def test_the_table_ends_with_the_sum() -> None:
    assert minutes({"a": 30, "b": 90}) == ["   1.5 min  b", "   0.5 min  a", "   2.0 min  in all"]


SOME = """
import pytest

@pytest.mark.slow
def test_one() -> None: ...

@pytest.mark.slow
@pytest.mark.skipif(True, reason="REASON")
def test_two() -> None: ...

@pytest.mark.skipif(True, reason="quick")
def test_three() -> None: ...
"""


def test_in_a_part_a_slow_test_that_lacks_what_could_be_installed_is_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "cluster"
    folder.mkdir(parents=True)
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    for name, reason in (("one", "no program"), ("two", "no files; set COA_BENCHMARKS")):
        (folder / f"test_{name}.py").write_text(SOME.replace("REASON", reason))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def outcomes(part: str) -> dict[str, int]:
        command = [*words, f"--part={part}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        found = re.findall(r"(\d+) (failed|passed|skipped|deselected|error)", done.stdout.splitlines()[-1])
        return {what: int(count) for count, what in found}

    assert outcomes("cluster") == {"passed": 2, "error": 1, "skipped": 1, "deselected": 2}
    assert outcomes("random") == {"skipped": 2, "deselected": 4}
