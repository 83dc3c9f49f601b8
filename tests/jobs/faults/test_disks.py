"""Reinforcement on disks that fill up or become read-only: one clear line, and the same command resumes."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.disks import NEEDS_ROOT, disk, full, read_only
from tests.support.rl_runs import Driver, RlRun, rl_run

pytestmark = [pytest.mark.slow, NEEDS_ROOT]

STEPS = 20
SETTINGS = (
    "rl.window.max_staleness=1",
    # A disk that is full stays so: each further start of the learners meets it again.
    "placement.learner_restarts=0",
)
OWN_DISKS = {"batches": 1, "trajectories": 1, "checkpoints/rl": 48}
"""Folders of the run with a disk of their own, and its MiB."""
RUN_MIB = 96


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RlRun]:
    with rl_run(tmp_path / "run", STEPS, *SETTINGS) as run:
        yield run


def goes_on(run: RlRun) -> Driver:
    """The command, once its learners have begun and two batches are handed out."""
    starts = len(run.lines("start"))
    driver = run.start()
    run.until(driver, lambda: len(run.lines("start")) > starts and len(run.batches()) >= 2)
    return driver


def kept_of(before: dict[int, dict[str, Any]], run: RlRun) -> None:
    """What was recorded up to the checkpoint that the last start went on from is what it was."""
    version, now = run.lines("start")[-1]["version"], run.records()
    for step in range(1, version + 1):
        assert now[step] == before[step], f"step {step} was finished"


def test_a_full_disk_ends_the_command_with_one_line_and_once_there_is_room_it_goes_on(run: RlRun) -> None:
    with ExitStack() as disks:
        disks.enter_context(disk(run.folder, RUN_MIB))
        run.prepare()
        for name, mib in OWN_DISKS.items():
            disks.enter_context(disk(run.folder / name, mib))
        before: dict[int, dict[str, Any]] = {}
        for name in (*OWN_DISKS, "."):
            driver = goes_on(run)
            kept_of(before, run)
            folder = run.folder / name
            with full(folder):
                done = run.ended(driver)
            print(f"{name}: {done.status} {done.error}", flush=True)
            assert done.status == 1
            assert done.line.startswith(f"coa: rl failed: DiskFull: {folder}/")
            assert ": no space left on the disk" in done.line
            before = run.records()
            assert run.half_files() == []
        run.finish()
        kept_of(before, run)
        run.accounts()


def test_a_disk_that_becomes_read_only_ends_the_command_with_one_line_and_once_it_is_not_it_goes_on(
    run: RlRun,
) -> None:
    run.prepare()
    driver = goes_on(run)
    with read_only(run.folder):
        done = run.ended(driver)
        print(done.status, done.error, flush=True)
        before = run.records()
        assert done.status == 1
        assert done.line.startswith(f"coa: rl failed: ReadOnlyDisk: {run.folder}/")
        assert done.line.endswith(": the disk has become read-only")
        again = run.ended(run.start())
        assert again.status == 2
        assert again.line == f"coa: {run.folder} can't be a run's folder: {run.folder} is not writable"
    run.finish()
    kept_of(before, run)
    run.accounts()
