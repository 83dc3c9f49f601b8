"""Sizes and digests of a checkpoint's files, by which a damaged or partial one is recognised.

rank 0 ── its files, then digests/rank-00000.json ──┐
rank 1 ── its files, then digests/rank-00001.json ──┴─► complete if the digests of all ranks are there

Digests are computed while the files are written. Filesystems are pyarrow's.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import xxhash

from coa.storage.files import room_at, sync, sync_folder

if TYPE_CHECKING:
    import pyarrow.fs

FOLDER = "digests"
READERS = 4
"""Threads that read the files of a checkpoint: hashing is faster than one stream of most disks."""
CHUNK = 1 << 24


@dataclass(frozen=True, slots=True)
class Written:
    """Size and digest that a file must have."""

    size: int
    digest: str
    """xxh3_128 (https://xxhash.com): finds damage, not an attacker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """The files that one rank has written into a checkpoint."""

    ranks: int
    """Number of ranks that write the checkpoint."""
    seconds: float
    """Duration of writing."""
    files: Mapping[str, Written]
    """By their path within the checkpoint."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())


class HashingStream:
    """An output stream that hashes what passes through it."""

    def __init__(self, inner: "pyarrow.NativeFile") -> None:
        self._inner, self._digest, self._size = inner, xxhash.xxh3_128(), 0

    def write(self, data: bytes | memoryview) -> int:
        self._inner.write(data)
        self._digest.update(data)
        size = memoryview(data).nbytes
        self._size += size
        return size

    def flush(self) -> None:
        self._inner.flush()

    def summary(self) -> Written:
        return Written(self._size, self._digest.hexdigest())


def write_file(
    filesystem: "pyarrow.fs.FileSystem", path: PurePosixPath, fill: Callable[[HashingStream], object]
) -> Written:
    """Writes a file by `fill`; it is on the disk when this returns. Raises DiskFull or ReadOnlyDisk."""
    with room_at(Path(path)):
        filesystem.create_dir(str(path.parent), recursive=True)
        with filesystem.open_output_stream(str(path)) as inner:
            stream = HashingStream(inner)
            fill(stream)
        if on_disk(filesystem):
            sync(Path(path))
    return stream.summary()


def write_digests(filesystem: "pyarrow.fs.FileSystem", checkpoint: str, rank: int, written: RankFiles) -> None:
    """Writes the digests of a rank's files, all of which are written."""
    path = PurePosixPath(checkpoint, FOLDER, f"rank-{rank:05}.json")
    text = json.dumps(asdict(written)).encode()
    write_file(filesystem, path, lambda stream: stream.write(text))
    if on_disk(filesystem):
        folders = {Path(checkpoint, name).parent for name in written.files}
        for folder in (*folders, Path(path.parent), Path(checkpoint), Path(checkpoint).parent):
            sync_folder(folder)


def rank_files(filesystem: "pyarrow.fs.FileSystem", checkpoint: str) -> list[RankFiles]:
    """Returns the files that the ranks have written into a checkpoint. Raises ValueError for digests that are damaged,
    and OSError."""
    from pyarrow.fs import FileSelector

    selector = FileSelector(str(PurePosixPath(checkpoint, FOLDER)), allow_not_found=True)
    return [_read(filesystem, info) for info in filesystem.get_file_info(selector)]


def damage(filesystem: "pyarrow.fs.FileSystem", checkpoint: str) -> str:
    """Returns the damage of a checkpoint in a few words; "" for a whole one. Files are read where they are on a disk:
    a store of objects has checksums of its own, and what is there is compared by size."""
    try:
        written = rank_files(filesystem, checkpoint)
    except (OSError, ValueError) as error:
        return f"its digests can't be read: {error}"
    ranks = max((one.ranks for one in written), default=1)
    if len(written) != ranks:
        return f"it has the digests of {len(written)} of {ranks} ranks"
    files = {name: file for one in written for name, file in one.files.items()}
    if found := next(_of_sizes(filesystem, checkpoint, files), ""):
        return found
    if not on_disk(filesystem):
        return ""
    with ThreadPoolExecutor(READERS) as readers:
        return next(filter(None, readers.map(partial(_of_bytes, checkpoint), files.items())), "")


def _of_sizes(filesystem: "pyarrow.fs.FileSystem", checkpoint: str, files: Mapping[str, Written]) -> Iterator[str]:
    infos = filesystem.get_file_info([str(PurePosixPath(checkpoint, name)) for name in files])
    for (name, file), info in zip(files.items(), infos, strict=True):
        if not info.is_file:
            yield f"{name} is missing"
        elif info.size != file.size:
            yield f"{name} has {info.size} of {file.size} bytes"


def _of_bytes(checkpoint: str, named: tuple[str, Written]) -> str:
    name, file = named
    digest = xxhash.xxh3_128()
    try:
        with Path(checkpoint, name).open("rb") as stream:
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
    except OSError as error:  # a block of the disk that can't be read
        return f"{name} can't be read: {error.strerror}"
    return "" if digest.hexdigest() == file.digest else f"{name} is not what was written"


def on_disk(filesystem: "pyarrow.fs.FileSystem") -> bool:
    """Whether paths of the filesystem are paths of this machine, on a disk of its own or on a mounted one."""
    return getattr(filesystem, "type_name", "") == "local"


def _read(filesystem: "pyarrow.fs.FileSystem", info: "pyarrow.fs.FileInfo") -> RankFiles:
    with filesystem.open_input_stream(info.path) as stream:
        found = json.loads(stream.read())
    try:
        files = {name: Written(**file) for name, file in found["files"].items()}
        return RankFiles(ranks=found["ranks"], seconds=found["seconds"], files=files)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{info.path} is damaged") from error
