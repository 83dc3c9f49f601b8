"""One run: its folder, its finished stages, its tasks and its console."""

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

from coa.config import dump
from coa.json_object import Json, JsonView
from coa.reporting.metrics import MetricsLog, Sink
from coa.storage.checkpoints import CheckpointFolder, open_folder
from coa.storage.files import write_atomically
from coa.storage.jsonl import to_json
from coa.storage.mirror import Mirror, new_token
from coa.tasks.worlds import World
from coa.types import Task
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import evaluation_tasks, held_out_tasks, world_of
from jobs.run.console import Console
from jobs.run.held_out import write_held_out
from jobs.run.sinks import open_sinks

CONFIG = "config.yaml"
"""File of the run's settings."""
STORAGE = "storage.json"
"""File in `checkpoints/` that names another storage of the checkpoints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """`checkpoints/storage.json`: where in `checkpoints.storage` the run is."""

    storage: str
    folder: str
    token: str = ""
    """See `coa.storage.mirror`; empty for runs that began before there were copies."""

    @staticmethod
    def read(run: Path) -> "Stored | None":
        """None if the run keeps its checkpoints in its folder, or nothing is there."""
        path = run / "checkpoints" / STORAGE
        return Stored(**json.loads(path.read_text())) if path.exists() else None

    @staticmethod
    def new(run: Path, storage: str) -> "Stored":
        """Of a run that begins: its folder there has the name of its folder here."""
        return Stored(storage=storage, folder=run.name, token=new_token())

    def write(self, run: Path) -> "Stored":
        write_atomically(run / "checkpoints" / STORAGE, json.dumps(asdict(self)))
        return self

    def open(self) -> CheckpointFolder:
        """The run's folder in the storage. Raises UserError if it can't be opened."""
        return open_folder(self.storage).below(self.folder)


def storage_of(run: Path) -> CheckpointFolder:
    """The folder above the stages' checkpoints of an existing run, wherever it keeps them."""
    stored = Stored.read(run)
    return open_folder((run / "checkpoints").resolve()) if stored is None else stored.open()


class RunDir:
    """Paths, finished stages and tasks of the run in `config.run_dir`."""

    def __init__(self, config: Recipe, console: Console) -> None:
        self.config, self.console = config, console
        self.folder = Path(config.run_dir).resolve()
        self.trajectories = self.folder / "trajectories"
        self.teachers = self.folder / "teachers"
        self.data = self.folder / "data"
        self.batches = self.folder / "batches"
        self.checkpoints = self.folder / "checkpoints"
        self.scores = self.checkpoints / "rl-scores.json"
        """The versions that were evaluated during RL, with their scores."""
        self.tokenizer = self.checkpoints / "tokenizer"
        self.start_model = self.checkpoints / "start"
        """Folder of the initial policy, tokenizer included."""
        self.sft_model = self.start_model if config.sft.skipped else self.checkpoints / "sft-model"
        """Folder of the policy at which RL begins."""
        self.model = self.folder / "model"
        self.mirror: Mirror | None = None
        """The copy in `checkpoints.storage` while the run works."""

    def prepare(self) -> None:
        """Creates the folders and files of a training run."""
        for folder in (self.trajectories, self.teachers, self.data, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / CONFIG, dump(self.config))
        write_held_out(self.folder, self.config, self.world)

    def storage(self) -> CheckpointFolder:
        """The folder above the stages' checkpoints: here, or the run's in `checkpoints.storage`, which is noted from
        its first use on. Raises UserError if it can't be opened."""
        if (storage := self.config.checkpoints.storage) is None:
            return open_folder(self.checkpoints)
        return (Stored.read(self.folder) or Stored.new(self.folder, storage).write(self.folder)).open()

    def copy(self) -> None:
        """Copies what has changed to `checkpoints.storage`, if that is set and the run works. Blocks."""
        if self.mirror is not None:
            self.mirror.update()

    def result(self, stage: str) -> Json | None:
        """The result of a finished stage; None while it is not finished."""
        path = self._result_path(stage)
        return json.loads(path.read_text()) if path.exists() else None

    def finish(self, stage: str, result: JsonView) -> Json:
        write_atomically(self._result_path(stage), to_json(result, indent=1))
        return dict(result)

    def count_start(self, stage: str) -> int:
        """Counts a start of the stage's learners; returns the number of earlier starts, in any process."""
        path = self.checkpoints / f"{stage}-starts.json"
        before = json.loads(path.read_text()) if path.exists() else 0
        write_atomically(path, json.dumps(before + 1))
        return before

    def _result_path(self, stage: str) -> Path:
        return self.checkpoints / f"{stage}.json"

    def metrics(self, stage: str, step: int) -> MetricsLog:
        """The run's metrics, opened for a stage that continues from `step`."""
        path = self.folder / "metrics.jsonl"
        return MetricsLog(path, resume={stage: step}, sinks=self._sinks, boundary=self.console.boundary)

    @cached_property
    def _sinks(self) -> list[Sink]:
        return open_sinks(self.config, self.folder, self.console)

    def close(self) -> None:
        """Closes the metric sinks (Ray gauges, wandb), if any were opened."""
        for sink in self.__dict__.pop("_sinks", ()):
            self.console.boundary.attempt(str(sink), sink.close)

    @cached_property
    def world(self) -> World:
        return world_of(self.config)

    @property
    def team_runs(self) -> int:
        """Number of team runs that distillation plays."""
        runs = self.config.distill.runs
        return self.world.team_runs if runs is None else runs

    def training_task(self, purpose: str, index: int) -> Task:
        """The index-th task of the endless stream of a purpose ("distill" or "rl")."""
        return self.world.training_task(purpose, index, seed=self.config.seed)

    def evaluation_tasks(self) -> tuple[Task, ...]:
        return evaluation_tasks(self.world, self.config.evaluation)

    def held_out_tasks(self) -> tuple[Task, ...]:
        return held_out_tasks(self.world, self.config.evaluation)
