"""Which checkpoints of the learners are kept, and where."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from pathlib import Path

from coa.bounds import AtLeast1
from coa.errors import UserError
from coa.storage.checkpoints import CheckpointFolder


@dataclass(frozen=True)
class CheckpointsConfig:
    """Checkpoints of the learners, and models that are exported between them."""

    storage: str | None = None
    """Folder or URI under which checkpoints are kept (file:///shared/folder, s3://bucket/folder, or another one that
    pyarrow opens), with a copy of the run's folder, from which the same command goes on if the folder is lost. The run
    gets a folder of its own there, with the name of its `run_dir`. None keeps checkpoints in the run's folder."""
    keep: AtLeast1 = 2
    """Number of a stage's newest checkpoints that are kept. With 1, there is none to go back to if the newest one is
    damaged."""
    keep_every: int = 0
    """Steps between two checkpoints that are kept for good; 0 for none."""
    keep_best: bool = False
    """Whether RL also keeps the checkpoint whose version has the highest `eval/pass_at_1`. It needs
    `rl.evaluate_every`, as a multiple of `rl.checkpoint_every`."""
    grace_s: float = 20.0
    """Maximum seconds for a last checkpoint after SIGTERM, which comes before a machine is taken away; 0 for none."""
    export_every: int = 0
    """Steps between two exports of the model in training, without the optimizer's state, to `exports/STAGE-STEP`, which
    `coa serve`, vLLM and transformers open; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Where and how often the learners of a stage write checkpoints and exports, and how many are kept."""

    folder: CheckpointFolder
    """The folder above those of the stages, each of which has the stage's checkpoints."""
    every: int
    """Steps between two checkpoints."""
    config: CheckpointsConfig = field(default_factory=CheckpointsConfig)
    scores: Path | None = None
    """File of the evaluated versions with their scores, which says which checkpoint is the best."""
    exports: str = ""
    """Folder of an exported model, without the number of its step."""
    beside: Path | None = None
    """Folder of the files that an exported model has besides its weights and its own configuration."""

    def export(self, version: int) -> Path:
        return Path(f"{self.exports}{version:05}")


def superfluous(versions: Mapping[str, int], config: CheckpointsConfig, scores: Mapping[int, float]) -> list[str]:
    """Names of the checkpoints that are not to be kept. versions: those that there are, in the order of steps.
    scores: of the versions that were evaluated."""
    older = list(versions.items())[: -config.keep]
    first: dict[int, int] = {}
    if config.keep_every:
        for version in versions.values():
            first.setdefault(version // config.keep_every, version)
        first.pop(0, None)
    evaluated = [version for version in versions.values() if isfinite(scores.get(version, nan)) and config.keep_best]
    best = max(evaluated, key=lambda version: (scores[version], version), default=None)
    return [name for name, version in older if version != best and version not in first.values()]


def check_keeping(config: CheckpointsConfig, *, checkpoint_every: int, evaluate_every: int) -> None:
    """Raises UserError if the best checkpoint is to be kept and none is evaluated."""
    if config.keep_best and (not evaluate_every or evaluate_every % checkpoint_every):
        raise UserError(
            f"checkpoints.keep_best needs rl.evaluate_every, as a multiple of rl.checkpoint_every={checkpoint_every}: "
            f"it is {evaluate_every}"
        )
