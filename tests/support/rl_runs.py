"""Short reinforcement of an untrained policy as a command of its own, for tests that break it and type it again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.processes import send
from coa.learning.accounts import OPEN, TRAINED, Accounts, fold
from coa.learning.batches import BatchStore
from coa.reporting.metrics import read_metrics
from coa.storage.checkpoints import RECORD
from coa.storage.jsonl import read_lines
from jobs.cli import main
from tests.support.tiny import make_model

Driver = subprocess.Popen[bytes]
LOOK_S = 0.02
"""Between two looks at what a run has written, which nobody else tells of."""
LONGEST_S = 900.0
SETTINGS = (
    "agent.limits.max_turns=3",
    "agent.limits.max_turn_tokens=24",
    "agent.limits.max_observation_tokens=32",
    "agent.limits.max_tokens=192",
    "rl.group=3",
    "rl.window.groups_per_batch=4",
    "rl.window.max_refills=1",
    "rl.checkpoint_every=2",
    "rl.reward.overlong_buffer=1.0",
    # An untrained policy is wrong in most groups alike: what differs is the lengths.
    "rl.algorithm_settings.spread=reward",
    "session.cpus=4",
    "wandb.mode=disabled",
)


@dataclass(frozen=True, slots=True)
class Ended:
    status: int
    out: str
    error: str

    @property
    def line(self) -> str:
        """What it said last of all; raises where it said more on stderr than one line."""
        [line] = self.error.splitlines()
        return line


@dataclass(frozen=True, kw_only=True)
class RlRun:
    """A run's folder, and the command that begins or resumes it."""

    folder: Path
    steps: int
    settings: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    """What the command is run by."""
    started: list[Driver] = field(default_factory=list)
    """All commands, also those of runs that were made of this one."""

    def prepare(self) -> "RlRun":
        """What fine-tuning would have left."""
        checkpoints = self.folder / "checkpoints"
        for name in ("start", "sft-model"):
            make_model(checkpoints / name)
        (checkpoints / "sft.json").write_text(json.dumps({"steps": 0, "seconds": 0.0, "samples": 0}))
        return self

    def start(self) -> Driver:
        words = ("rl", "--recipe", "tiny", f"run_dir={self.folder}", f"rl.steps={self.steps}")
        return self.type(*words, *SETTINGS, *self.settings)

    def type(self, *words: str) -> Driver:
        """Starts a command of `coa`."""
        usual = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        with self._said("out").open("w") as out, self._said("error").open("w") as error:
            driver = subprocess.Popen(
                [*self.before, sys.executable, "-m", "jobs.cli", *words],
                env={**usual, **self.environment},
                stdout=out,
                stderr=error,
            )
        self.started.append(driver)
        return driver

    def _said(self, name: str) -> Path:
        return self.folder.parent / f"{self.folder.name}-{name}.txt"

    @property
    def out(self) -> str:
        return self._said("out").read_text()

    def ended(self, driver: Driver) -> Ended:
        """Once it has ended; one that does not is killed, and fails the test."""
        try:
            status = driver.wait(LONGEST_S)
        finally:
            kill(driver)
        return Ended(status, self.out, self._said("error").read_text())

    def finish(self) -> None:
        """Types the command; it ends well."""
        done = self.ended(self.start())
        assert done.status == 0, done.error

    def until(self, driver: Driver, holds: Callable[[], bool]) -> None:
        """Returns once something is so while the command runs; its end before that, or no end of it, fails the test."""
        deadline = time.monotonic() + LONGEST_S
        while not holds():
            with suppress(subprocess.TimeoutExpired):
                driver.wait(LOOK_S)
            assert driver.returncode is None, self.ended(driver)
            assert time.monotonic() < deadline, self.out

    # --- what it has written --------------------------------------------------------------------------------------

    def lines(self, what: str) -> list[Any]:
        return [line for line in read_lines(self.folder / "ledger.jsonl") if line["what"] == what]

    def batches(self) -> list[int]:
        """The versions at which the batches of the last start are trained."""
        found = read_lines(self.folder / "ledger.jsonl")
        begun = max((at for at, line in enumerate(found) if line["what"] == "start"), default=0)
        return [line["version"] for line in found[begun:] if line["what"] == "lease"]

    @property
    def kept(self) -> Path:
        return self.folder / "checkpoints" / "rl"

    def checkpoints(self) -> set[str]:
        """Those that there are, and one that is being written."""
        return {path.name for path in self.kept.glob("checkpoint_*") if path.is_dir()}

    @property
    def record(self) -> Path:
        """Ray Train's, of the checkpoints that are whole."""
        return self.kept / RECORD

    def records(self) -> dict[int, dict[str, Any]]:
        found = read_metrics(self.folder / "metrics.jsonl")
        assert len(found) == len({one["step"] for one in found}), "a step has one record"
        return {one["step"]: one for one in found}

    def of_steps(self, name: str) -> list[Any]:
        """A metric of every step; none is missing."""
        records = self.records()
        return [records[step][name] for step in range(1, self.steps + 1)]

    def accounts(self) -> Accounts:
        """Those of a run that is finished: each task of the stream was trained, or dropped for good, exactly once, and
        what the ledger calls trained is what the ranks were given."""
        accounts = fold(read_lines(self.folder / "ledger.jsonl"))
        assert main(["verify", str(self.folder)]) == 0
        assert (accounts.faults, accounts.finished) == ([], True)
        [row] = accounts.balance().values()
        assert not set(row) & set(OPEN)
        settled = Counter(one.task for one in accounts.attempts.values() if one.settled is not None)
        assert settled == dict.fromkeys(range(accounts.cursor()[0]), 1)
        assert self._given() == {step: self._trained(accounts, step) for step in range(1, self.steps + 1)}
        return accounts

    def _given(self) -> dict[int, set[int]]:
        """The groups of each step, from its recorded batch."""
        store = BatchStore(self.folder / "batches")
        return {step: {sample.group for share in store.read(step) for sample in share} for step in store.steps()}

    def _trained(self, accounts: Accounts, step: int) -> set[int]:
        attempts = accounts.attempts.values()
        return {one.group for one in attempts if one.batch == step - 1 and accounts.state(one) == TRAINED}

    def half_files(self) -> list[Path]:
        """What an interrupted write has left."""
        return [path for path in self.folder.rglob("*") if path.name.endswith("partial")]


@contextmanager
def rl_run(folder: Path, steps: int, *settings: str, before: tuple[str, ...] = (), **variables: str) -> Iterator[RlRun]:
    """With a folder for Ray's own files, whose sockets need short paths. What still runs at the end is killed."""
    ray = Path(tempfile.mkdtemp(prefix="coa-ray-"))
    environment = {"RAY_TMPDIR": str(ray), **variables}
    run = RlRun(folder=folder, steps=steps, settings=settings, environment=environment, before=before)
    try:
        yield run
    finally:
        for driver in run.started:
            kill(driver)
        shutil.rmtree(ray, ignore_errors=True)


def kill(driver: Driver) -> None:
    """SIGKILL for the command and all that it has started, as when its machine fails. They are stopped first, so that
    none starts another meanwhile. Where it has ended its id may be another's by now."""
    if driver.poll() is not None:
        return
    found: set[psutil.Process] = set()
    while new := tree(driver.pid) - found:
        found |= new
        for process in new:
            send(process, signal.SIGSTOP)
    ends = [end for process in found if (end := end_of(process)) is not None]
    for process in found:
        send(process, signal.SIGKILL)
    driver.wait()
    for end in ends:
        connection.wait([end])
        os.close(end)


def end_of(process: psutil.Process) -> int | None:
    """A descriptor that is readable once the process has ended."""
    with suppress(ProcessLookupError):
        return os.pidfd_open(process.pid)
    return None


def tree(pid: int) -> set[psutil.Process]:
    """A process and all below it that have not ended."""
    with suppress(psutil.NoSuchProcess):
        whole = psutil.Process(pid)
        return {one for one in (whole, *whole.children(recursive=True)) if one.status() != psutil.STATUS_ZOMBIE}
    return set()
