"""Finds newer weights of a run that is still training, from the files of its run directory alone.

checkpoints/sft-model/     version 0 of reinforcement
checkpoints/rl/            the learners' checkpoints; Ray's record says which is the newest whole one
checkpoints/rl.json        reinforcement has ended:
model/                     its last version
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coa.config import read
from coa.errors import UserError
from coa.json_object import JsonView
from coa.storage.checkpoints import PROGRESS, RECORD

STAGE = "rl"
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
    """The line for a run none of whose checkpoints can be served, so that only its end is followed; else empty.
    Raises UserError for a config.yaml that can't be read."""
    found = read(path) if (path := run / "config.yaml").is_file() else {}
    learner = _section(_section(found, STAGE), "learner")
    if _section(found, "checkpoints").get("storage") is not None:
        why = "checkpoints.storage keeps its checkpoints elsewhere"
    elif learner.get("zero_stage") == 3:
        why = "rl.learner.zero_stage=3 shards the weights in its checkpoints"
    elif (learner.get("lora") or {}).get("rank"):
        why = "rl.learner.lora.rank leaves only adapters in its checkpoints"
    else:
        return ""
    return f"{run} is followed to its finished model only: {why}"


def _section(found: object, name: str) -> JsonView:
    return (found.get(name) if isinstance(found, Mapping) else None) or {}


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
        last = json.loads((run / "checkpoints" / STAGE / RECORD).read_text())["latest_checkpoint_result"]
        folder = run / "checkpoints" / STAGE / last["checkpoint_dir_name"]
        version = int(json.loads((folder / PROGRESS).read_text())["version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Made(version, folder / STATES, folder.name) if (folder / STATES).is_file() else None
