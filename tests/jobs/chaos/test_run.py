"""The loop that strikes, on processes that have nothing but the titles of a run's parts."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coa.errors import InfrastructureError
from jobs.chaos import processes
from jobs.chaos import run as loop
from jobs.chaos.findings import Journal
from jobs.chaos.plan import Kind, Part, Strike
from jobs.chaos.rounds import TRIES, Round

FAKE = (sys.executable, "-m", "tests.support.fake_run")
KINDS = (Kind.core, Kind.stop_rank, Kind.buffer, Kind.driver, Kind.tools)
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
    return loop.Chaos(nodes, Journal(folder / "chaos.jsonl"), said.append, time.time() + 600)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_each_part_is_struck_and_recovers_and_the_driver_is_started_again(round_: Round, tmp_path: Path) -> None:
    said: list[str] = []
    chaos = chaos_of(round_, tmp_path, said)
    assert chaos.play(1, round_, STRIKES, steps=60) == ()
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
    assert chaos_of(short, tmp_path, []).play(1, short, late, steps=4) == late


def test_a_driver_that_fails_again_and_again_ends_it_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "round").mkdir()
    failing = Round(tmp_path / "round", [*FAKE, "4", "fails"], dict(os.environ))
    with pytest.raises(InfrastructureError, match=r"the driver ended with status 1: see .*driver\.out"):
        chaos_of(failing, tmp_path, []).play(1, failing, STRIKES, steps=4)
    assert failing.unprovoked == TRIES - 1
