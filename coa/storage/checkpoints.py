"""The folder in which Ray Train keeps a stage's checkpoints, and what a kill or a bad disk leaves in it.

STAGE/checkpoint_manager_snapshot.json     Ray Train's record of the checkpoints that it has committed
STAGE/checkpoint_TIME/                     one each, names in the order of time
    state/  progress.json  digests/
"""

import io
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from os.path import expanduser
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from coa.errors import UserError
from coa.storage.digests import CHUNK, damage, on_disk
from coa.storage.files import replacing

RECORD = "checkpoint_manager_snapshot.json"
PROGRESS = "progress.json"
"""The version and the cursor of a checkpoint."""
NAMES, SET_ASIDE = "checkpoint_", "damaged_"


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A folder on a filesystem of pyarrow: the checkpoints of a stage, or the folder above several stages."""

    filesystem: Any
    path: str

    def below(self, name: str) -> "CheckpointFolder":
        return CheckpointFolder(self.filesystem, self.of(name))

    def of(self, name: str) -> str:
        """The path of a checkpoint, or of another file of the folder."""
        return str(PurePosixPath(self.path, name))

    def names(self, prefix: str = NAMES) -> list[str]:
        """Folders of checkpoints, the oldest first, whether they are whole or not."""
        from pyarrow.fs import FileSelector, FileType

        found = self.filesystem.get_file_info(FileSelector(self.path, allow_not_found=True))
        folders = [PurePosixPath(one.path).name for one in found if one.type == FileType.Directory]
        return sorted(name for name in folders if name.startswith(prefix))

    def has_files(self) -> bool:
        from pyarrow.fs import FileSelector

        return bool(self.filesystem.get_file_info(FileSelector(self.path, allow_not_found=True)))

    def recorded(self) -> list[str] | None:
        """Names in Ray Train's record, the oldest first; none without a record, None for one that was cut short."""
        if (text := self.read(RECORD)) is None:
            return []
        try:
            return sorted(one["checkpoint_dir_name"] for one in json.loads(text)["checkpoint_results"])
        except (ValueError, KeyError, TypeError):  # Ray Train writes it in place
            return None

    def version(self, name: str) -> int | None:
        """The version of a checkpoint, from the file of its progress; None if that can't be read."""
        try:
            return int(json.loads(self.read(f"{name}/{PROGRESS}") or "{}")["version"])
        except (ValueError, KeyError, TypeError):
            return None

    def versions(self) -> dict[str, int]:
        """The recorded checkpoints that are there, the oldest first, by name."""
        there = set(self.names())
        found = {name: self.version(name) for name in self.recorded() or () if name in there}
        return {name: version for name, version in found.items() if version is not None}

    def remove(self, name: str) -> None:
        self.filesystem.delete_dir(self.of(name))

    def set_aside(self, name: str) -> None:
        """Keeps a damaged checkpoint under another name, where a folder can be renamed, and removes it elsewhere."""
        if on_disk(self.filesystem):
            self.filesystem.move(self.of(name), self.of(SET_ASIDE + name))
        else:
            self.remove(name)

    def write_record(self, names: list[str]) -> None:
        self.write(RECORD, io.BytesIO(_record_of(names).encode()))

    def write(self, name: str, source: BinaryIO) -> None:
        """Writes a file, which is whole or absent: on a disk by its renaming, and a store of objects has no parts."""
        if on_disk(self.filesystem):
            with replacing(Path(self.of(name))) as part, part.open("wb") as target:
                shutil.copyfileobj(source, target, CHUNK)
            return
        self.filesystem.create_dir(str(PurePosixPath(self.of(name)).parent), recursive=True)
        with self.filesystem.open_output_stream(self.of(name)) as target:
            shutil.copyfileobj(source, target, CHUNK)

    def copy_to(self, name: str, path: Path) -> None:
        """Copies a file from here to `path`. Raises OSError."""
        with self.filesystem.open_input_stream(self.of(name)) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, CHUNK)

    def read(self, name: str) -> str | None:
        """The text of a file; None if there is none."""
        try:
            with self.filesystem.open_input_stream(self.of(name)) as stream:
                return stream.read().decode(errors="replace")
        except FileNotFoundError:
            return None


def open_folder(storage: str | Path) -> CheckpointFolder:
    """storage: an absolute path, `~` for the home folder, or a URI that pyarrow opens. Raises UserError for anything
    else."""
    from pyarrow import ArrowException
    from pyarrow.fs import FileSystem

    try:
        filesystem, path = FileSystem.from_uri(expanduser(storage))
    except (ArrowException, OSError) as error:
        raise UserError(f"checkpoints can't be kept in {storage}: {str(error).splitlines()[0]}") from error
    return CheckpointFolder(filesystem, str(PurePosixPath(path)))


@dataclass(frozen=True, slots=True)
class Mended:
    """A folder from which learners can start."""

    version: int | None
    """The version of its newest checkpoint, None without one."""
    damaged: Mapping[str, str]
    """What was wrong with each of the checkpoints that were damaged, the newest first."""

    def caution(self) -> str:
        """One line for damaged checkpoints; empty without any."""
        if not self.damaged:
            return ""
        found = "; ".join(f"{name}: {wrong}" for name, wrong in self.damaged.items())
        begin = "from the beginning" if self.version is None else f"from the one of version {self.version}"
        return f"a damaged checkpoint is set aside, and learners start {begin} ({found})"


def mend(folder: CheckpointFolder) -> Mended:
    """Makes the folder one from which learners can start. Nobody may write in it now.

    Checkpoints are verified from the newest to the first whole one; damaged ones are set aside, and those set aside
    before are removed. Checkpoints that the record does not name are removed. The record is written anew if it was cut
    short or names a checkpoint that is gone.
    """
    for name in folder.names(SET_ASIDE):
        folder.remove(name)
    found, recorded = folder.names(), folder.recorded()
    # Ray Train writes the record once the newest checkpoint in it is whole, while at most one later one has begun.
    kept = [*(found[:-1] or found)] if recorded is None else [*recorded]
    damaged: dict[str, str] = {}
    while kept:
        wrong = "it is gone" if kept[-1] not in found else _damage(folder, kept[-1])
        if not wrong:
            break
        damaged[kept.pop()] = wrong
    # Older ones may have been removed by the policy that keeps checkpoints, which the record does not follow.
    kept = [name for name in kept if name in found]
    if kept != recorded:
        folder.write_record(kept)
    for name in found:
        if name in damaged:
            folder.set_aside(name)
        elif name not in kept:
            folder.remove(name)
    return Mended(folder.version(kept[-1]) if kept else None, damaged)


def _damage(folder: CheckpointFolder, name: str) -> str:
    found = damage(folder.filesystem, folder.of(name))
    return f"it has no {PROGRESS}" if not found and folder.version(name) is None else found


def _record_of(names: list[str]) -> str:
    """A record as Ray Train 2.60 writes it, with these checkpoints."""
    results = [{"version": 0, "checkpoint_dir_name": name, "metrics": {}} for name in names]
    return json.dumps(
        {
            "ray_version": version("ray"),
            "checkpoint_results": results,
            "checkpoint_report_indices": list(range(len(results))),
            "latest_checkpoint_result": results[-1] if results else None,
            "pending_training_results": [],
            "pending_validation_specs": [],
            "current_report_index": len(results),
            "validated_checkpoint_dir_names": [],
            "timed_out_validation_checkpoint_dir_names": [],
            "failed_validation_checkpoint_dir_names": [],
        }
    )
