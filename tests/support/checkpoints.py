"""Checkpoints as ranks write them, without ranks."""

import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from pyarrow.fs import LocalFileSystem

from coa.storage.checkpoints import PROGRESS, RECORD, CheckpointFolder
from coa.storage.digests import RankFiles, write_digests, write_file

STATES = ("state/rank-0.pt", "state/rank-1.pt")
"""The file of each rank."""
BYTES = bytes(range(256)) * 16
LOCAL = LocalFileSystem()


def folder_at(path: Path) -> CheckpointFolder:
    return CheckpointFolder(LocalFileSystem(), str(path))


def write_checkpoint(path: Path, version: int, filesystem: Any = LOCAL) -> Path:
    """A whole checkpoint of two ranks."""
    progress = json.dumps({"version": version, "cursor": version}).encode()
    files: Mapping[str, bytes]
    for rank, files in enumerate(({STATES[0]: BYTES, PROGRESS: progress}, {STATES[1]: BYTES})):
        written = {
            name: write_file(filesystem, PurePosixPath(path, name), lambda stream, data=data: stream.write(data))
            for name, data in files.items()
        }
        write_digests(filesystem, str(path), rank, RankFiles(ranks=2, seconds=1.0, files=written))
    return path


def write_checkpoints(stage: Path, *versions: int) -> list[Path]:
    """Whole checkpoints with a record that names them."""
    found = [write_checkpoint(stage / f"checkpoint_{number}", version) for number, version in enumerate(versions)]
    folder_at(stage).write_record([path.name for path in found])
    return found


def latest(stage: Path) -> str | None:
    """The name of the checkpoint that a record gives to learners."""
    newest = json.loads((stage / RECORD).read_text())["latest_checkpoint_result"]
    return newest and newest["checkpoint_dir_name"]
