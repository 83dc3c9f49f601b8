"""The folder in which Ray Train keeps a stage's checkpoints, and what a kill or a bad disk leaves in it.

STAGE/checkpoint_manager_snapshot.json     Ray Train's record of the checkpoints that it has committed
STAGE/starts.json                          how often learners were started
STAGE/checkpoint_STEP_START/               one each: the version, and the number of the start that wrote it
    state/  progress.json  digests/

Ray Train's own names, which older folders have, are local times: a clock that is set back gives a newer checkpoint an
older name. The order of such checkpoints is that of their versions.
"""

import io
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from itertools import takewhile
from os.path import expanduser
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from coa.errors import UserError
from coa.storage.digests import CHUNK, damage, on_disk
from coa.storage.files import replacing

if TYPE_CHECKING:
    import pyarrow.fs

RECORD = "checkpoint_manager_snapshot.json"
PROGRESS = "progress.json"
"""The version and the cursor of a checkpoint."""
STARTS = "starts.json"
NAMES, SET_ASIDE = "checkpoint_", "damaged_"
_NAME = re.compile(rf"{NAMES}([0-9]+)_([0-9]+)")


def checkpoint_name(step: int, start: int) -> str:
    """The name of the checkpoint that learners write at this version, in their start of this number."""
    return f"{NAMES}{step:08}_{start:04}"


def _of_name(name: str) -> tuple[int, int] | None:
    """The step and the start of a checkpoint, None for a name of another form."""
    found = _NAME.fullmatch(name)
    return found and (int(found[1]), int(found[2]))


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """A folder on a filesystem of pyarrow: the checkpoints of a stage, or the folder above several stages."""

    filesystem: "pyarrow.fs.FileSystem"
    path: str

    def below(self, name: str) -> "CheckpointFolder":
        return CheckpointFolder(self.filesystem, self.of(name))

    def of(self, name: str) -> str:
        """The path of a checkpoint, or of another file of the folder."""
        return str(PurePosixPath(self.path, name))

    def names(self, prefix: str = NAMES) -> list[str]:
        """Folders of checkpoints, in the order of their steps, whether they are whole or not. Those of which it can't
        be told are the last: one that is being written has no progress yet."""
        from pyarrow.fs import FileSelector, FileType

        found = self.filesystem.get_file_info(FileSelector(self.path, allow_not_found=True))
        folders = [PurePosixPath(one.path).name for one in found if one.type == FileType.Directory]
        return sorted((name for name in folders if name.startswith(prefix)), key=self._place)

    def _place(self, name: str) -> tuple[float, int, str]:
        """The place of a checkpoint in the order of steps."""
        if (found := _of_name(name)) is not None:
            return (*found, name)
        version = self.version(name)
        return (float("inf") if version is None else version, 0, name)

    def has_files(self) -> bool:
        from pyarrow.fs import FileSelector

        return bool(self.filesystem.get_file_info(FileSelector(self.path, allow_not_found=True)))

    def recorded(self) -> list[str] | None:
        """Names in Ray Train's record, in the order in which they were committed; none without a record, None for one
        that was cut short."""
        if (text := self.read(RECORD)) is None:
            return []
        try:
            return [one["checkpoint_dir_name"] for one in json.loads(text)["checkpoint_results"]]
        except (ValueError, KeyError, TypeError):  # Ray Train writes it in place
            return None

    def version(self, name: str) -> int | None:
        """The version of a checkpoint, from the file of its progress; None if that can't be read."""
        try:
            return int(json.loads(self.read(f"{name}/{PROGRESS}") or "{}")["version"])
        except (ValueError, KeyError, TypeError):
            return None

    def versions(self) -> dict[str, int]:
        """The recorded checkpoints that are there, by name, in the order of their steps."""
        recorded = set(self.recorded() or ())
        found = {name: self.version(name) for name in self.names() if name in recorded}
        return {name: version for name, version in found.items() if version is not None}

    def count_start(self) -> int:
        """Counts a start of the learners; returns its number, which no earlier start of theirs has had."""
        try:
            before = int(json.loads(self.read(STARTS) or "0"))
        except (ValueError, TypeError):
            before = 0
        start = 1 + max([before, *(found[1] for name in self.names() if (found := _of_name(name)) is not None)])
        self.write(STARTS, io.BytesIO(json.dumps(start).encode()))
        return start

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
    """Damage of each checkpoint that was damaged, the newest first."""
    start: int = 0
    """Number of the start for which it was mended."""

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
    short, names a checkpoint that is gone, or has another order than that of the steps.
    """
    for name in folder.names(SET_ASIDE):
        folder.remove(name)
    found, recorded = folder.names(), folder.recorded()
    # Ray Train writes the record once the newest checkpoint in it is whole, while at most one later one has begun.
    kept = [*(found[:-1] or found)] if recorded is None else [name for name in found if name in recorded]
    # Older ones may have been removed by the policy that keeps checkpoints, which the record does not follow.
    gone = takewhile(lambda name: name not in found, reversed(recorded or ()))
    damaged = dict.fromkeys(gone, "it is gone")
    while kept and (wrong := _damage(folder, kept[-1])):
        damaged[kept.pop()] = wrong
    if kept != recorded:
        folder.write_record(kept)
    for name in found:
        if name in damaged:
            folder.set_aside(name)
        elif name not in kept:
            folder.remove(name)
    return Mended(folder.version(kept[-1]) if kept else None, damaged, folder.count_start())


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
