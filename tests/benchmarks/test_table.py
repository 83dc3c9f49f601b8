"""The table of the benchmarks' results, and the commits that its figures are of."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import harness, table, tiny_runs
from benchmarks.harness import refuse_mixed, report
from benchmarks.tiny_runs import Kept, by_seeds, commits_of, kept

LEARNER = {"figures": {"tiny/ratio": 0.97, "memory_ratio": 1.31}, "commit": "abc"}


def test_the_table_says_what_holds_and_what_is_missing() -> None:
    found = list(table.lines({"learner": LEARNER}))
    what = "tokens per second of the learner / those of a bare training loop, the tiny model"
    assert f"| `learner` | {what} | >= 0.95 | 0.97 | yes |" in found
    assert any(line.endswith("| 1.31 | **no** |") for line in found)
    assert sum(table.MISSING in line for line in found) == len(table.ROWS) - 2
    document = f"a\n{table.BEGIN}\nold\n{table.END}\nb\n"
    assert table.filled(document, "new") == f"a\n{table.BEGIN}\nnew\n{table.END}\nb\n"


def test_the_spread_over_rounds_stands_beside_the_median() -> None:
    figures = {"speedup_4": 3.3, "speedup_4_min": 3.1, "speedup_4_max": 3.456, "speedup_1": 2.0}
    found = list(table.lines({"loop_sync": {"figures": figures, "commit": "abc"}}))
    assert any(line.endswith("| >= 3.2 | 3.3 (3.1 to 3.46) | yes |") for line in found)
    assert any(line.endswith("| 2 |  |") for line in found)


def test_one_commit_is_said_once_and_several_in_each_row() -> None:
    one = list(table.lines({"learner": LEARNER, "engine": {"figures": {}, "commit": "abc"}}))
    assert one[-1] == "\nAll figures are of commit abc."
    assert "commit" not in one[0]
    several = list(table.lines({"learner": LEARNER, "engine": {"figures": {"tiny/ratio": 0.6}, "commit": "def"}}))
    assert several[0].endswith("| commit |")
    assert [line.split("|")[-2].strip() for line in several if "| 0.97 |" in line or "| 0.6 |" in line] == [
        "def",
        "abc",
    ]
    assert not any("All figures" in line for line in several)


def test_each_row_can_be_read_alone() -> None:
    assert [row.what for row in table.ROWS if row.what.startswith("the same")] == []
    assert len({(row.benchmark, row.what) for row in table.ROWS}) == len(table.ROWS)


def test_seeds_of_another_commit_are_refused_by_name() -> None:
    speeds = {"figures": {"speedup_4": 3.3}, "commit": "abc"}
    seeds = {"seed 0": "abc", "seed 1": "def"}
    rewards = {"figures": {"reward_0": 0.9}, "commit": "abc, def", "commits": seeds}
    table.check({"loop_sync": speeds, "learner": LEARNER, "engine": {"figures": {}, "commit": "def"}})
    with pytest.raises(SystemExit, match="loop_sync, loop_sync_reward seed 0 at abc; loop_sync_reward seed 1 at def"):
        table.check({"loop_sync": speeds, "loop_sync_reward": rewards})
    with pytest.raises(SystemExit, match="--mixed"):
        refuse_mixed("rewards", seeds)
    refuse_mixed("rewards", {"seed 0": "abc", "seed 1": "abc"})


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of results, at commit "new"."""
    monkeypatch.setattr(harness, "RESULTS", tmp_path)
    monkeypatch.setattr(tiny_runs, "RESULTS", tmp_path)
    monkeypatch.setattr(harness, "commit", lambda: "new")
    monkeypatch.setattr(tiny_runs, "commit", lambda: "new")
    return tmp_path


def keep(results: Path, seed: int, commit: str, found: Any) -> None:
    (results / "one").mkdir(exist_ok=True)
    (results / "one" / f"seed-{seed}.json").write_text(json.dumps({"commit": commit, "found": found}))


def test_a_kept_seed_has_its_own_commit_and_says_that_it_was_not_measured_again(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep(results, 0, "old", 0.5)
    assert commits_of("one", [0, 1]) == {"seed 0": "old", "seed 1": "new"}
    assert kept("one", 0, lambda seed: 0.9) == Kept("old", 0.5)
    assert "seed-0.json was measured at old and is not measured again" in capsys.readouterr().err
    assert kept("one", 1, lambda seed: 0.9) == kept("one", 1, lambda seed: 0.0) == Kept("new", 0.9)
    assert capsys.readouterr().err == ""


def test_a_benchmark_over_seeds_reports_their_commit(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[int] = []

    def one_seed(seed: int) -> float:
        measured.append(seed)
        return 0.9

    def run(*words: str) -> None:
        monkeypatch.setattr("sys.argv", ["one", "--seeds", "0", "1", *words])
        by_seeds("one", "", one_seed, lambda found: {"sum": sum(found)}, {"sum": ">= 1"})

    keep(results, 0, "old", 0.5)
    with pytest.raises(SystemExit, match="seed 0 at old; seed 1 at new"):
        run()
    assert measured == [], "refused before hours of measuring"
    run("--mixed")
    result = json.loads((results / "one.json").read_text())
    assert (result["figures"], result["commit"]) == ({"sum": 1.4}, "old, new")
    assert result["commits"] == {"seed 0": "old", "seed 1": "new"}
    keep(results, 1, "old", 0.5)
    run()
    assert json.loads((results / "one.json").read_text())["commit"] == "old"
    report("two", {"sum": 1.0}, {})
    assert json.loads((results / "two.json").read_text())["commit"] == "new"


@pytest.mark.parametrize(
    "name",
    [
        "loop_limit",
        "loop_sync",
        "loop_trl",
        "learner",
        "prefix_trees",
        "sft_learner",
        "data",
        "plan",
        "engine",
        "weights",
    ],
)
def test_the_table_has_the_targets_of_the_benchmarks(name: str) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    targets = {
        figure: target for key, value in vars(module).items() if "TARGETS" in key for figure, target in value.items()
    }
    rows = {row.figure: row.target for row in table.ROWS if row.benchmark == name}
    assert {figure: rows[figure] for figure in targets} == targets
