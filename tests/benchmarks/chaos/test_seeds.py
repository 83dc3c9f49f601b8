"""What the seeds of a chaos run make together."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos import seeds
from benchmarks.chaos.plan import Kind
from benchmarks.chaos.seeds import PARTS, TARGETS, figures_of, play, table
from benchmarks.harness import holds

RESULT: dict[str, Any] = {
    "seed": 4,
    "asked": 3,
    "kills": 3,
    "idle_victims": {"teacher": 1},
    "wrong": [],
    "by_kind": {"core": 3},
    "rounds": 2,
    "took_s": 600.0,
    "pass_at_1": 0.7,
    "pass_at_1_undisturbed": 0.72,
    "times": {"core": [30.0, 50.0, 40.0]},
    "restarts": {"driver": 1},
}
COMMAND = "import sys; from pathlib import Path; status, text, *_, out = sys.argv[1:]\n"
COMMAND += "text and (Path(out) / 'result.json').write_text(text); raise SystemExit(int(status))"


def words(status: int, result: dict[str, Any] | None) -> list[str]:
    """In place of `benchmarks.chaos`."""
    return [sys.executable, "-c", COMMAND, str(status), json.dumps(result) if result else ""]


def test_a_seed_has_a_result_of_its_own_with_the_commit_it_was_played_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "results" / "seed-4.json"

    def played(status: int, result: dict[str, Any], at: str) -> dict[str, Any]:
        monkeypatch.setattr(seeds, "commit", lambda: at)
        return play(4, words(status, result), tmp_path, tmp_path / "results")

    assert played(0, RESULT, "aaa") == {**RESULT, "status": 0, "commit": "aaa"} == json.loads(kept.read_text())
    assert played(0, RESULT, "bbb")["commit"] == "aaa", "nothing was played"
    resumed = {**RESULT, "wrong": ["1 rounds did not finish"]}
    assert played(1, resumed, "ccc") == {**resumed, "status": 1, "commit": "ccc"}


@pytest.mark.parametrize(("status", "result"), [(2, RESULT), (1, None), (3, None)])
def test_a_command_that_ends_without_a_result_ends_the_benchmark_whatever_was_there_before(
    tmp_path: Path, status: int, result: dict[str, Any] | None
) -> None:
    (tmp_path / "result.json").write_text(json.dumps(RESULT))
    with pytest.raises(
        SystemExit, match=f"^seed 4: `benchmarks.chaos` ended with status {status}, and without a result$"
    ):
        play(4, words(status, result), tmp_path, tmp_path / "results")


def test_the_figures_are_of_all_seeds_and_hold_within_forty_minutes() -> None:
    other = {**RESULT, "seed": 5, "times": {"core": [10.0, 60.0], "rank": [20.0]}, "idle_victims": {}}
    figures = figures_of([RESULT, other])
    assert (figures["core_median_s"], figures["core_worst_s"], figures["rank_worst_s"]) == (40.0, 60.0, 20.0)
    assert (figures["kills"], figures["idle_victims"], figures["pass_at_1_apart_5"]) == (6, 1, -0.02)
    assert holds(figures, TARGETS)
    assert not holds(figures_of([{**RESULT, "took_s": 2401.0}]), TARGETS)


def test_the_table_has_a_row_for_each_kind_and_each_seed() -> None:
    assert PARTS.keys() == set(Kind)
    times = {**RESULT, "seed": 5, "commit": "bbb", "times": {"core": [10.0, 60.0]}, "by_kind": {"core": 2}}
    first, again = table([times, {**RESULT, "commit": "aaa"}]).split("\n\n")
    assert first.splitlines()[2:] == ["| vLLM's core process of an engine | 5 | 40 | 60 |"]
    assert again.splitlines()[2:] == [
        "| 4 | 3 | 2 | 0 | 0.700 | 0.720 | 10 | aaa |",
        "| 5 | 3 | 2 | 0 | 0.700 | 0.720 | 10 | bbb |",
    ]
