"""The loop that strikes, on processes that have nothing but the titles of a run's parts."""

import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.chaos import processes
from benchmarks.chaos import run as loop
from benchmarks.chaos.__main__ import source_of
from benchmarks.chaos.course import Step
from benchmarks.chaos.findings import Journal
from benchmarks.chaos.plan import Kind, Part, Strike
from benchmarks.chaos.rounds import TRIES, Round
from coa.errors import ClusterDown, InfrastructureError
from jobs.recipe.schema import Recipe
from jobs.run.console import Console, Stage

FAKE = (sys.executable, "-m", "tests.support.fake_run")
KINDS = (Kind.core, Kind.stop_rank, Kind.buffer, Kind.driver, Kind.tools)
MAKES = """
import sys
from pathlib import Path
from benchmarks.chaos.rounds import BEFORE
folder = Path(sys.argv[1].removeprefix("run_dir="))
for name in BEFORE:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
(folder / "words").write_text(" ".join(sys.argv[1:]))
"""
"""In place of `coa train`."""
STRIKES = tuple(Strike(number, kind, 0.1, 0.9) for number, kind in enumerate(KINDS))


@dataclass
class OneNode:
    """What runs below the driver is on it."""

    round: Round

    def head(self) -> int:
        return os.getpid()  # with the driver below it, and all the rest

    def raylets(self) -> list[int]:
        return []


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "LOOK_S", 0.05)
    monkeypatch.setattr(loop, "STOP_S", 1.0)
    monkeypatch.setattr(loop, "WANTED", {part: n for part, n in loop.WANTED.items() if part is not Part.node})
    monkeypatch.setattr(processes, "BUSY", 0.0)


@pytest.fixture
def round_(tmp_path: Path) -> Iterator[Round]:
    (tmp_path / "round").mkdir()
    made = Round(tmp_path / "round", [*FAKE, "60"], dict(os.environ))
    yield made
    made.kill_driver()


def chaos_of(round_: Round, folder: Path, said: list[str]) -> loop.Chaos:
    nodes: object = OneNode(round_)
    return loop.Chaos(nodes, Journal(folder / "chaos.jsonl"), said.append)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_each_part_is_struck_and_recovers_and_the_driver_is_started_again(round_: Round, tmp_path: Path) -> None:
    said: list[str] = []
    chaos = chaos_of(round_, tmp_path, said)
    assert chaos.play(1, round_, STRIKES, Stage("round 1", 60)) == ()
    hits = chaos.journal.hits
    assert [hit.kind for hit in hits] == [kind.value for kind in KINDS]
    assert all(hit.stepped for hit in hits)
    assert [hit.restarts for hit in hits] == [int(kind is Kind.driver) for kind in KINDS]
    assert hits[1].whole_s >= 1.0, "a stopped rank is back when it goes on"
    verdict = round_.verdict()
    assert (verdict["faults"], verdict["finished"], verdict["pass_at_1"], verdict["unprovoked"]) == ([], True, 0.7, 0)
    assert round_.staleness == 1


def test_what_is_left_of_the_strikes_when_a_round_ends_is_for_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "round").mkdir()
    short = Round(tmp_path / "round", [*FAKE, "4"], dict(os.environ))
    late = tuple(Strike(number, Kind.core, 60.0, 0.5) for number in range(2))
    assert chaos_of(short, tmp_path, []).play(1, short, late, Stage("round 1", 4)) == late


def test_a_driver_that_fails_again_and_again_ends_it_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "round").mkdir()
    failing = Round(tmp_path / "round", [*FAKE, "4", "fails"], dict(os.environ))
    with pytest.raises(InfrastructureError, match=r"the driver ended with status 1: see .*driver\.out"):
        chaos_of(failing, tmp_path, []).play(1, failing, STRIKES, Stage("round 1", 4))
    assert failing.unprovoked == TRIES - 1


def test_a_mistake_ends_it_at_once_unless_a_strike_may_be_behind_it(tmp_path: Path) -> None:
    """A driver that is started beside a lost node may find the cluster unfit."""
    mistaken = Round(tmp_path, ["sh", "-c", "exit 2"], dict(os.environ))

    def ended(*, struck: bool) -> bool:
        assert mistaken._driver is not None
        mistaken._driver.wait()
        return mistaken.keep_up(struck=struck)

    mistaken.start()
    assert not ended(struck=True)
    with pytest.raises(InfrastructureError, match="status 2"):
        ended(struck=False)


def test_an_alarm_that_was_told_is_not_told_again(tmp_path: Path) -> None:
    row = {"stage": "rl", "step": 1, "time": 5.0, "loss": 0.1, "sync_alarms": 2, "staleness_max": 0, "engines_up": 2}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    round_ = Round(tmp_path, [], {})
    round_.step(1.0)
    assert sum(round_.alarms.values()) == 2
    round_.alarms = dict.fromkeys(round_.alarms, 0)
    round_.step(2.0)
    assert sum(round_.alarms.values()) == 0


def test_a_step_has_the_time_of_the_look_that_saw_it_whatever_the_wall_clock_said(tmp_path: Path) -> None:
    round_ = Round(tmp_path, [], {})
    row = {"stage": "rl", "loss": 0.1, "sync_alarms": 0, "staleness_max": 0, "engines_up": 2}
    seen: list[Step | None] = [round_.step(9.0)]
    for step, wall in ((1, 5000.0), (2, 8600.0), (3, 5001.0)):
        with (tmp_path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({**row, "step": step, "time": wall}) + "\n")
        seen += [round_.step(10.0 * step), round_.step(10.0 * step + 1)]
    steps = [Step(step, 10.0 * step, 2) for step in (1, 1, 2, 2, 3, 3)]
    assert seen == [None, *steps]


def test_rounds_begin_with_a_run_that_is_trained_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config, console = Recipe(run_dir="runs/own"), Console(io.StringIO(), io.StringIO())
    folder, makes = tmp_path / "chaos", [sys.executable, "-c", MAKES]
    with pytest.raises(InfrastructureError, match=r"no run to begin with: `coa train` into \S+ ended with status 7"):
        source_of(config, folder, [sys.executable, "-c", "raise SystemExit(7)"], console)
    assert source_of(config, folder, makes, console) == folder / "source"
    assert (folder / "source" / "words").read_text() == f"run_dir={folder / 'source'} rl.steps=1"
    (folder / "source" / "words").unlink()
    shutil.copytree(folder / "source", "runs/own")
    assert source_of(config, folder, makes, console) == folder / "source", "as before"
    assert not (folder / "source" / "words").exists(), "it is not trained again"
    assert source_of(config, tmp_path / "another", makes, console) == Path("runs/own")


def test_a_node_that_does_not_come_up_is_tried_again_later(round_: Round, tmp_path: Path) -> None:
    class Busy(OneNode):
        tries = 0

        def replace_lost(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise ClusterDown("no time for it")

    chaos = chaos_of(round_, tmp_path, [])
    chaos.clock = lambda: 10.0
    nodes = chaos.nodes = Busy(round_)  # pyright: ignore[reportAttributeAccessIssue]
    chaos._lost_at = 0.0
    chaos._go_on(loop.REPLACED_S)
    chaos._go_on(10.0)
    assert nodes.tries == 1
    chaos._go_on(10.0 + loop.REPLACED_S)
    assert (nodes.tries, chaos._lost_at) == (2, None)
