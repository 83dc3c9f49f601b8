"""Reinforcement that is killed whole at random moments, and resumed each time by the same command."""

import hashlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import numpy as np
import pytest

from coa.learning.accounts import TRAINED
from tests.support.rl_runs import RlRun, kill, rl_run

pytestmark = pytest.mark.slow

STEPS = 16
SYNCHRONOUS, ASYNCHRONOUS = ("rl.window.max_staleness=0",), ("rl.window.max_staleness=2",)


class Phase(StrEnum):
    starting = "starting"
    """Ray, engines and learners come up."""
    playing = "playing"
    """Groups are played, batches trained, weights published."""
    saving = "saving"
    """A checkpoint is being written."""
    ending = "ending"
    """The last batch is handed out."""


PHASES = [Phase.starting, Phase.playing, Phase.saving, Phase.saving]
"""Of all kills but the last one, which is at the end."""


@dataclass(frozen=True, slots=True)
class Moment:
    phase: Phase
    batches: int
    """That are handed out before it, where it is in the middle."""
    part: float
    """Of the phase, that has gone by."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Seconds that the phases take on this machine."""

    starting: float
    playing: float
    """Of a step."""
    ending: float
    saving: float = 0.3

    def of(self, phase: Phase) -> float:
        return getattr(self, phase)


def moments(seed: int) -> list[Moment]:
    dice = random.Random(seed)
    phases = [*dice.sample(PHASES, len(PHASES)), Phase.ending]
    return [Moment(phase, dice.randint(1, 3), dice.random()) for phase in phases]


def play(run: RlRun) -> Lengths:
    """The whole run, undisturbed, and how long its phases took."""
    began = time.monotonic()
    driver = run.start()
    run.until(driver, lambda: bool(run.lines("issue")))
    played = time.monotonic()
    run.until(driver, lambda: len(run.batches()) == STEPS)
    ending = time.monotonic()
    done = run.ended(driver)
    assert done.status == 0, done.error
    return Lengths(played - began, (ending - played) / STEPS, time.monotonic() - ending)


def strike(run: RlRun, moment: Moment, lengths: Lengths) -> None:
    """Types the command, and kills all of it at that moment."""
    kept, starts = run.checkpoints(), len(run.lines("start"))
    driver = run.start()

    def handed_out(batches: int) -> bool:
        begun = run.lines("start")[starts:]
        found = run.batches() if begun else []
        at_the_end = STEPS - 1 in found or any(line["version"] == STEPS for line in begun)
        return at_the_end or len(found) >= batches

    match moment.phase:
        case Phase.playing:
            run.until(driver, lambda: handed_out(moment.batches))
        case Phase.saving:
            run.until(driver, lambda: bool(run.checkpoints() - kept) or handed_out(STEPS))
        case Phase.ending:
            run.until(driver, lambda: handed_out(STEPS))
        case Phase.starting:
            pass
    at = f"{moment.phase}, {moment.part:.2f}"
    with suppress(subprocess.TimeoutExpired):
        driver.wait(moment.part * lengths.of(moment.phase))
    assert driver.returncode in (None, 0), run.ended(driver)
    kill(driver)
    print(f"killed at {at}: {len(run.lines('start'))} starts, batches {run.batches()[-1:]}", flush=True)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RlRun]:
    with rl_run(tmp_path_factory.mktemp("killed"), STEPS) as run:
        yield run


def prepared(base: RlRun, name: str, settings: tuple[str, ...]) -> RlRun:
    return replace(base, folder=base.folder / name, settings=settings).prepare()


@pytest.fixture(scope="module")
def quiet(base: RlRun) -> tuple[RlRun, Lengths]:
    run = prepared(base, "quiet", SYNCHRONOUS)
    return run, play(run)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_synchronous_run_that_was_killed_learns_what_one_learns_that_was_not(
    base: RlRun, quiet: tuple[RlRun, Lengths]
) -> None:
    undisturbed, lengths = quiet
    run = prepared(base, "struck", SYNCHRONOUS)
    for moment in moments(0):
        strike(run, moment, lengths)
    run.finish()
    struck, expected = run.accounts(), undisturbed.accounts()
    assert struck.starts >= len([one for one in moments(0) if one.phase != Phase.starting])
    assert np.abs(np.array(run.of_steps("loss")) - undisturbed.of_steps("loss")).max() < 1e-5
    trained = [
        sorted((one.batch, one.task) for one in found.attempts.values() if found.state(one) == TRAINED)
        for found in (struck, expected)
    ]
    assert trained[0] == trained[1]
    assert run.of_steps("weights") == undisturbed.of_steps("weights")
    weights = Path("model", "model.safetensors")
    assert sha256(run.folder / weights) == sha256(undisturbed.folder / weights)


def test_an_asynchronous_run_that_was_killed_trains_every_task_once(base: RlRun, quiet: tuple[RlRun, Lengths]) -> None:
    _, lengths = quiet
    run = prepared(base, "asynchronous", ASYNCHRONOUS)
    for moment in moments(1):
        strike(run, moment, lengths)
    run.finish()
    run.accounts()
    assert max(run.of_steps("staleness_max")) <= 2


def test_a_run_whose_newest_checkpoint_was_cut_short_goes_on_from_the_one_before(
    base: RlRun, quiet: tuple[RlRun, Lengths]
) -> None:
    """As a kill leaves it while Ray Train writes its record."""
    undisturbed, _ = quiet
    run = prepared(base, "cut", SYNCHRONOUS)
    driver = run.start()
    run.until(driver, lambda: 6 in run.batches())
    kill(driver)
    for path in (run.record, *(run.kept / max(run.checkpoints())).rglob("*.pt")):
        os.truncate(path, path.stat().st_size // 2)
    run.finish()
    run.accounts()
    assert 0 < run.lines("start")[-1]["version"] < 6
    assert np.abs(np.array(run.of_steps("loss")) - undisturbed.of_steps("loss")).max() < 1e-5
