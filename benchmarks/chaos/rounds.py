"""Rounds of RL: each is a run directory that begins with the same fine-tuned model, is trained by the command
`coa train`, and may be killed and resumed any number of times."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.chaos.course import Step
from benchmarks.chaos.processes import end
from coa.errors import InfrastructureError, UserError
from coa.learning.accounts import fold
from coa.reporting.metrics import Record, read_metrics
from coa.reporting.readable import look_up
from coa.storage.files import replacing_folder
from coa.storage.jsonl import read_lines
from jobs.stages.reinforcement.ledger import FILE as LEDGER
from jobs.stages.reinforcement.rl_stats import STAGE

ENGINES, EXECUTORS, RANKS = 2, 2, 2
SETTINGS = (
    f"placement.engines={ENGINES}",
    f"placement.tool_executors={EXECUTORS}",
    f"rl.learner.ranks={RANKS}",
    # A run must not fail because kills have used up the learners' restarts.
    "placement.learner_restarts=10000",
    "rl.checkpoint_every=4",
    # Short steps, and many of them before the policy converges.
    "rl.window.groups_per_batch=16",
    "rl.learner.optimizer.lr=0.0001",
    "rl.teacher_fallback.attempts=2",
    "evaluation.samples=2",
)
"""Settings of a round: at least two of each part, so that a run continues when one is lost. The user's own overrides
take precedence."""
BEFORE = (
    *(f"checkpoints/{name}.json" for name in ("distill", "sft", "evaluation-sft", "team-cost")),
    *(f"checkpoints/{name}" for name in ("tokenizer", "start", "sft-model")),
    "trajectories/evaluation-sft.parquet",
    "data",
)
"""Files of another run that a round begins with."""
OUTPUT, LOG = "driver.out", "logs/driver.log"
"""The driver's output on the terminal, and its log."""
TRIES = 5
"""Number of drivers that fail in a row, without a step trained in between, at which a round is given up."""
FAILED_CHECKS = re.compile(r"DamagedWeights|IncompleteWeights|WrongVersion|StaleWeights")
ENDS_S = 60.0


@dataclass
class Round:
    folder: Path
    command: Sequence[str]
    """Command that trains or resumes a run; the run directory is appended to it."""
    environment: Mapping[str, str]
    restarts: int = 0
    """Number of times that the driver was started again."""
    unprovoked: int = 0
    """Number of these restarts while the run was not recovering from a strike."""
    alarms: dict[float, int] = field(default_factory=dict)
    """Sync alarms of each record by its time, including records that a resume dropped."""
    staleness: int = 0
    _newest: tuple[int, float] | None = None
    """The newest step that was seen, and the time of its record."""
    _newest_at: float = 0.0
    """When it was seen first."""
    _driver: "subprocess.Popen[bytes] | None" = None
    _failed: int = 0
    _version: int = -1

    # --- the driver ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        with (self.folder / OUTPUT).open("ab") as output:
            self._driver = subprocess.Popen(
                [*self.command, f"run_dir={self.folder}"],
                env=importable(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # ctrl-C must not reach the driver in addition to the signal of `stop`
            )

    @property
    def driver(self) -> int | None:
        """The driver's process id; None if it does not run."""
        return self._driver.pid if self._driver is not None and self._driver.poll() is None else None

    def kill_driver(self) -> None:
        if self._driver is not None:
            self._driver.kill()
            self._driver.wait()

    def keep_up(self, *, struck: bool) -> bool:
        """Starts the driver again if it has ended too early; returns True once it has ended successfully. `struck`:
        whether the run is recovering from a strike, which may end the driver. Raises InfrastructureError if the driver
        fails repeatedly."""
        assert self._driver is not None
        if (status := self._driver.poll()) is None:
            return False
        if status == 0:
            return True
        version = rows[-1]["step"] if (rows := self._rows()) else -1
        self._failed = 0 if struck or version > self._version else self._failed + 1
        self._version = version
        if self._failed >= TRIES or (status == 2 and not struck):
            raise InfrastructureError(f"the driver ended with status {status}: see {self.folder / OUTPUT}")
        self.restarts += 1
        self.unprovoked += not struck
        self.start()
        return False

    def stop(self) -> None:
        """Interrupts the driver, as a user does, and waits for its end."""
        if self._driver is None or self._driver.poll() is not None:
            return
        self._driver.send_signal(signal.SIGINT)
        try:
            self._driver.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            end(self._driver.pid)
            self._driver.wait()

    # --- results ------------------------------------------------------------------------------------------------------

    def step(self, now: float) -> Step | None:
        """The newest one. Its time is that of the first look that saw it: records have the time of the wall clock,
        which may jump."""
        rows = self._rows()
        for row in rows:
            self.alarms.setdefault(row["time"], row["sync_alarms"])
            self.staleness = max(self.staleness, row["staleness_max"])
        if not rows:
            return None
        newest = rows[-1]["step"], rows[-1]["time"]
        if newest != self._newest:
            self._newest, self._newest_at = newest, now
        return Step(rows[-1]["step"], self._newest_at, int(rows[-1]["engines_up"]))

    def _rows(self) -> list[Record]:
        rows = read_metrics(self.folder / "metrics.jsonl")
        return [row for row in rows if row["stage"] == STAGE and "loss" in row]

    @property
    def trained(self) -> bool:
        """Whether the round's RL stage is finished."""
        return (self.folder / "checkpoints" / f"{STAGE}.json").exists()

    @property
    def finished(self) -> bool:
        return (self.folder / "report.json").exists()

    def verdict(self) -> dict[str, Any]:
        """Results of a finished round."""
        accounts = fold(read_lines(self.folder / LEDGER))
        [total] = accounts.balance().values()
        evaluation = json.loads((self.folder / "report.json").read_text())["evaluation"][STAGE]
        told = [path for path in (self.folder / OUTPUT, self.folder / LOG) if path.exists()]
        said = "".join(path.read_text(errors="replace") for path in told)
        return {
            "pass_at_1": look_up(evaluation, "pass_at_1.mean"),
            "greedy": look_up(evaluation, "greedy.mean"),
            "finished": accounts.finished,
            "faults": accounts.faults,
            "attempts": dict(total),
            "starts": accounts.starts,
            "failed_checks": len(FAILED_CHECKS.findall(said)),
            "alarms": sum(self.alarms.values()),
            "unprovoked": self.unprovoked,
            "staleness": self.staleness,
        }


def importable(environment: Mapping[str, str]) -> dict[str, str]:
    """With these packages on the path of a process that is started in any folder."""
    root = str(Path(__file__).parents[2])
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, (root, environment.get("PYTHONPATH"))))}


def lacking(source: Path) -> str:
    """The first file that a round begins with and that the run lacks; empty for a run that has them all."""
    return next((name for name in BEFORE if not (source / name).exists()), "")


def check_source(source: Path) -> None:
    """Raises UserError for a run that lacks what a round begins with."""
    if name := lacking(source):
        raise UserError(f"{source / name}: no such file: a round begins with a run that `coa train` has finished")


def make_source(folder: Path, train: Sequence[str]) -> None:
    """Trains what rounds begin with, unless the folder has it; goes on where it was interrupted. Raises
    InfrastructureError where that fails."""
    if lacking(folder):
        # All that precedes reinforcement, which a run of one step finishes in the same way.
        words = [*train, f"run_dir={folder}", "rl.steps=1"]
        status = subprocess.run(words, env=importable(os.environ), check=False).returncode
        if status or lacking(folder):
            raise InfrastructureError(f"no run to begin with: `coa train` into {folder} ended with status {status}")


def prepare(folder: Path, source: Path) -> None:
    """Copies the files that a round begins with, unless its folder exists."""
    if folder.exists():
        return
    with replacing_folder(folder) as part:
        for name in BEFORE:
            found = source / name
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if found.is_dir() else shutil.copy)(found, part / name)
