"""Finds newer weights of a run that is still training, from the files of its run directory alone.

checkpoints/sft-model/     version 0 of RL
checkpoints/rl/            the learners' checkpoints; Ray's list says which are complete, and of which version
checkpoints/rl.json        RL has ended:
model/                     its last version
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coa.config import read
from coa.errors import UserError

STAGE = "rl"
LIST = "checkpoint_manager_snapshot.json"
"""Ray Train's list of checkpoints, which it replaces as a whole once one is complete."""
STATES = Path("state", "mp_rank_00_model_states.pt")
"""The weights in a DeepSpeed checkpoint, if they are not sharded."""


@dataclass(frozen=True, slots=True)
class Made:
    """Weights that a run has made."""

    version: int
    path: Path
    """A model's folder, or a file of a learner's checkpoint (STATES)."""
    identity: str
    """Distinguishes weights of the same version, which a run produces after a rollback to a checkpoint."""

    @property
    def finished(self) -> bool:
        return self.path.is_dir()


def start_of(run: Path) -> Path:
    """The folder of the initial model of a server that follows a run; raises UserError if there is none."""
    for folder in (run / "checkpoints" / "sft-model", run / "model"):
        if (folder / "config.json").is_file():
            return folder
    raise UserError(f"{run}: no run with a model to serve yet (no checkpoints/sft-model, no model)")


def caution_of(run: Path) -> str:
    """A warning for a run whose checkpoints have only sharded weights, so that only its final model is followed; else
    "". Raises UserError for a config.yaml that can't be read."""
    found: Any = read(path) if (path := run / "config.yaml").is_file() else {}
    for name in (STAGE, "learner"):
        found = found.get(name) if isinstance(found, Mapping) else None
    learner = found or {}
    if learner.get("zero_stage") == 3:
        why = "rl.learner.zero_stage=3 shards the weights in its checkpoints"
    elif (learner.get("lora") or {}).get("rank"):
        why = "rl.learner.lora.rank leaves only adapters in its checkpoints"
    else:
        return ""
    return f"{run} is followed to its finished model only: {why}"


def newest(run: Path) -> Made | None:
    """The newest complete version; None if RL has not produced one yet."""
    return _finished(run) or _checkpoint(run)


def _finished(run: Path) -> Made | None:
    try:
        result = json.loads((run / "checkpoints" / f"{STAGE}.json").read_text())
        file = (run / "model" / "model.safetensors").stat()
        return Made(int(result["steps"]), run / "model", f"model {file.st_mtime_ns}")
    except (OSError, ValueError, KeyError):
        return None


def _checkpoint(run: Path) -> Made | None:
    try:
        last = json.loads((run / "checkpoints" / STAGE / LIST).read_text())["latest_checkpoint_result"]
        folder = run / "checkpoints" / STAGE / last["checkpoint_dir_name"]
        version = int(last["metrics"]["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Made(version, folder / STATES, folder.name) if (folder / STATES).is_file() else None
