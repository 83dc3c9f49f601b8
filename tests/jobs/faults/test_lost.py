"""Reinforcement on a machine that is taken away with everything on it but `checkpoints.storage`."""

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coa.storage.checkpoints import open_folder
from tests.support.rl_runs import Driver, RlRun, kill, rl_run

pytestmark = pytest.mark.slow
STEPS, EVERY = 12, 5


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RlRun]:
    settings = (
        "rl.window.max_staleness=1",
        f"rl.checkpoint_every={EVERY}",
        f"checkpoints.storage=file://{tmp_path}/store",
    )
    with rl_run(tmp_path / "run", STEPS, *settings) as run:
        yield run


def lose(run: RlRun) -> dict[int, dict[str, Any]]:
    """Its folder; returns the records that were in it."""
    records = run.records()
    shutil.rmtree(run.folder)
    return records


def resumed(run: RlRun, starts: int) -> Driver:
    """The command, once its learners have begun for the `starts`-th time."""
    driver = run.start()
    run.until(driver, lambda: len(run.lines("start")) == starts)
    assert f"the run goes on from its copy in {run.folder.parent}/store/run" in run.out
    return driver


def test_the_same_command_goes_on_where_the_folder_is_lost(run: RlRun) -> None:
    kept = open_folder(run.folder.parent / "store").below("run").below("rl")
    run.prepare()
    driver = run.start()
    run.until(driver, lambda: bool(run.records()))
    driver.send_signal(signal.SIGTERM)
    done = run.ended(driver)
    assert (done.status, done.line) == (130, "interrupted; the same command resumes")
    assert "SIGTERM: ending with a last checkpoint, within 20 s" in done.out
    [last] = kept.versions().values()
    before = lose(run)
    assert last % EVERY
    assert last <= max(before), "a checkpoint counts once the copy has the records up to its step"

    driver = resumed(run, starts=2)
    assert run.lines("start")[-1]["version"] == last
    run.until(driver, lambda: max(kept.versions().values(), default=0) >= EVERY and max(run.records()) > EVERY)
    kill(driver)
    again = lose(run)
    assert [again[step] for step in range(1, last + 1)] == [before[step] for step in range(1, last + 1)]

    driver = resumed(run, starts=3)
    version = run.lines("start")[-1]["version"]
    assert version >= EVERY
    assert run.ended(driver).status == 0
    records = run.records()
    assert [records[step] for step in range(1, version + 1)] == [again[step] for step in range(1, version + 1)]
    run.accounts()
    shutil.rmtree(run.folder)
    run.finish()
    assert run.records() == records
    run.accounts()
