"""The slow tests' shares: each file in one of them, all about equally long, and what is missing is an error."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.slow import DEFAULT, ROOT, deal, known_seconds, minutes, parse_share


def test_each_file_is_in_one_share_and_the_longest_are_apart() -> None:
    seconds = {"a": 90.0, "b": 60.0, "c": 50.0, "d": 40.0, "e": 20.0, "f": 10.0}
    assert deal(seconds, 3, seconds) == [{"a"}, {"b", "e", "f"}, {"c", "d"}]
    assert deal(["f", "b"], 3, seconds) == deal(seconds, 3, seconds), "whichever files are asked for"


def test_a_file_without_a_figure_counts_as_one_of_a_minute() -> None:
    assert deal(["new"], 2, {"a": DEFAULT + 1, "b": DEFAULT - 1}) == [{"a"}, {"new", "b"}]


@pytest.mark.parametrize("text", ["", "1", "4/4", "-1/4", "1/0", "a/b", "1/4/4"])
def test_what_is_no_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_share(text)


def test_the_table_ends_with_the_sum() -> None:
    assert minutes({"a": 30, "b": 90}) == ["   1.5 min  b", "   0.5 min  a", "   2.0 min  in all"]


def test_the_recorded_quarters_are_within_a_tenth_of_one_another() -> None:
    seconds = known_seconds()
    loads = [sum(seconds[file] for file in share) for share in deal(seconds, 4, seconds)]
    assert max(loads) <= 1.1 * min(loads)


def test_each_file_with_a_figure_has_slow_tests() -> None:
    gone = [file for file in known_seconds() if not (ROOT / file).exists() or "slow" not in (ROOT / file).read_text()]
    assert gone == []


def test_each_commit_runs_another_quarter() -> None:
    shown = subprocess.run(["make", "-n", "-C", ROOT, "slow-quarter"], capture_output=True, text=True, check=True)
    count = subprocess.run(["git", "rev-list", "--count", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"--share {int(count.stdout) % 4}/4" in shown.stdout


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


def outcomes(folder: Path, *options: str) -> Counter[str]:
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    for name, reason in (("one", "no program"), ("two", "no files; set COA_BENCHMARKS")):
        (folder / f"test_{name}.py").write_text(SOME.replace("REASON", reason))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml", folder]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout)
    found = re.findall(r"(\d+) (failed|passed|skipped|deselected|error)", done.stdout.splitlines()[-1])
    return Counter({what: int(count) for count, what in found})


def test_with_a_share_a_slow_test_that_lacks_what_could_be_installed_is_an_error(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "--share", "0/1") == {"passed": 2, "error": 1, "skipped": 3}


def test_every_slow_test_is_in_one_of_two_shares(tmp_path: Path) -> None:
    assert sum((outcomes(tmp_path, "--share", f"{share}/2", "-m", "slow") for share in (0, 1)), Counter()) == {
        "passed": 2,
        "error": 1,
        "skipped": 1,
        "deselected": 8,
    }
