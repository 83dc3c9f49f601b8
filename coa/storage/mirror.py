"""A copy of a run's folder in another storage, from which the same command goes on where the folder is lost.

STORAGE/NAME/run.json     who works on the run, and the files that belong to it
STORAGE/NAME/run/...      these files
STORAGE/NAME/{sft,rl}/    checkpoints, which learners write there themselves

`run.json` is written last, so whoever reads it finds all files that it names. Who makes the folder anew gives the run a
new token, which the folder holds too: a folder with an older token is behind the storage. The holder writes `run.json`
again and again; one that does not for LAPSE_S seconds counts as dead, whatever the clocks of hosts say.
"""

import io
import json
import os
import secrets
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from coa.errors import InfrastructureError, UserError
from coa.storage.checkpoints import CheckpointFolder
from coa.storage.files import replacing
from coa.storage.holder import Holder, is_same, runs
from coa.storage.run_folders import REPLACED, WRITTEN

FILE, FILES = "run.json", "run"
LAPSE_S = 60.0
"""Seconds without a sign of life after which a holder on another host counts as dead."""
LOOK_S = 2.0
"""Seconds between two looks for such a sign."""
THREADS = 4
"""Files that are fetched at the same time."""
LEFT_OUT = ("logs/", "lease.json", "checkpoints/storage.json")
"""Paths that belong to the host on which a command runs, and are not mirrored."""
KEPT_OF = {"wandb": ("run-id",)}
"""Of these folders, only these files are copied."""
DATABASE, BESIDE = ".db", ("-wal", "-shm", "-journal")
"""End of the name of an SQLite database, and of the files beside it, which belong to its present user."""
Waiting = Callable[[str], AbstractContextManager[None]]
"""Shows a line to the user for as long as its context lasts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`run.json`."""

    token: str
    """Of the last takeover."""
    folder: str
    """Path of the run's folder on the host of its last holder."""
    holder: Holder
    """Who works on it, or did last."""
    working: bool
    """Whether it does, or was killed before it could say that it does not any more."""
    beat: int = 0
    """Grows with each writing."""
    files: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Size in bytes and time of change in ns of each file, by its path within the folder."""

    def text(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def of(text: str) -> "Manifest":
        """Raises ValueError for a text that is none."""
        try:
            found = json.loads(text)
            files = {name: (int(size), int(changed)) for name, (size, changed) in found.pop("files").items()}
            return Manifest(**{**found, "holder": Holder(**found["holder"]), "files": files})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"no record of a run: {error}") from error


class Mirror:
    """The copy of the folder `local` in `there`, made by `us`. token: the one that the folder holds; empty if it is
    lost. Methods raise InfrastructureError if the storage fails."""

    def __init__(self, local: Path, there: CheckpointFolder, us: Holder, token: str) -> None:
        self._local, self._there, self._us, self.token = local, there, us, token
        self._known: dict[str, tuple[int, int]] = {}
        """The files of the copy as they were when they were copied."""
        self._beat = 0
        self._updating = threading.Lock()

    def manifest(self) -> Manifest | None:
        """None if the storage has no such run."""
        with self._reached("read"):
            text = self._there.read(FILE)
        if text is None:
            return None
        try:
            return Manifest.of(text)
        except ValueError as error:
            raise InfrastructureError(f"{self._there.of(FILE)} is damaged: {error}") from error

    def read(self, name: str, path: Path) -> bool:
        """Copies a file from the copy to `path`; False if the copy does not have it."""
        with self._reached("read"):
            try:
                self._there.copy_to(f"{FILES}/{name}", path)
            except FileNotFoundError:
                return False
        return True

    # --- who works on the run -----------------------------------------------------------------------------------------

    def begin(self, waiting: Waiting, *, new: bool) -> None:
        """Says that this process works on the run. new: whether the folder is new.

        waiting: a context in which it is watched whether a holder on another host lives. Raises UserError if another
        process works on the run, if it has another folder on this host, or if the folder is behind.
        """
        before = self.manifest()
        if before is not None:
            if self.token != before.token:
                raise UserError(
                    f"{self._local} is behind {self._there.path}, where {before.holder} went on: move the folder away, "
                    "and the same command fetches the run from there"
                )
            self._take(before, waiting)
        elif new and self._there.has_files():
            raise UserError(f"{self._there.path} has files of no run: choose another run_dir, or checkpoints.storage")
        self._write(working=True)

    def begin_anew(self, before: Manifest, waiting: Waiting) -> None:
        """Makes the folder anew, whose token is the mirror's once this returns, and works on it no further. before: the
        present manifest. Raises UserError if another process works on the run, or if it has another folder on this
        host."""
        self._take(before, waiting)
        self.token = new_token()
        self._write(working=True)
        with waiting(f"fetching {len(before.files)} files of the run from {self._there.path}"):
            self._fetch(before)
        self._write(working=False)

    def _take(self, before: Manifest, waiting: Waiting) -> None:
        other = Path(before.folder)
        if before.holder.host == self._us.host and other != self._local and (other / "checkpoints").is_dir():
            raise UserError(
                f"{self._there.path} belongs to the run in {other}: choose another name for run_dir, or another "
                "checkpoints.storage"
            )
        if before.working and self._is_alive(before, waiting):
            raise UserError(f"{self._there.path} is in use by {before.holder}; end it, or choose another run_dir")
        self._known, self._beat = dict(before.files), before.beat

    def _is_alive(self, before: Manifest, waiting: Waiting) -> bool:
        if before.holder.host == self._us.host:
            return runs(before.holder) and not is_same(before.holder, self._us)
        with waiting(f"looking whether {before.holder} still works on {self._there.path}"):
            return self._beats(before.beat)

    def _beats(self, beat: int) -> bool:
        until = time.monotonic() + LAPSE_S
        while time.monotonic() < until:
            time.sleep(LOOK_S)
            found = self.manifest()
            if found is not None and found.beat != beat:
                return found.working
        return False

    # --- from the folder ----------------------------------------------------------------------------------------------

    def update(self, *, ended: bool = False) -> None:
        """Copies every file that has changed since the last time; `ended`: this process works on it no longer. Raises
        UserError if another process has taken the run."""
        with self._updating:
            if not (self._local / "config.yaml").exists():  # somebody has removed the folder; the copy stays whole
                return
            found = self.manifest()
            if found is None or found.token != self.token:
                by = f" by {found.holder}" if found is not None else ""
                raise UserError(f"{self._there.path} was taken over{by}")
            there = {}
            for name, path in sorted(files_of(self._local), key=lambda one: not one[0].endswith(DATABASE)):
                try:
                    there[name] = _state(path)
                    if self._known.get(name) != there[name]:
                        self._copy(name, path)
                except FileNotFoundError:  # it was removed meanwhile
                    there.pop(name, None)
            self._known = there
            self._write(working=not ended)

    def _copy(self, name: str, path: Path) -> None:
        """Raises FileNotFoundError if the file of the folder is gone."""
        with tempfile.TemporaryDirectory() as folder:
            source = _snapshot(path, Path(folder, "copy")) if path.suffix == DATABASE else path
            with source.open("rb") as stream, self._reached("written"):
                self._there.write(f"{FILES}/{name}", stream)

    def _write(self, *, working: bool) -> None:
        self._beat += 1
        found = Manifest(
            token=self.token,
            folder=str(self._local),
            holder=self._us,
            working=working,
            beat=self._beat,
            files=self._known,
        )
        with self._reached("written"):
            self._there.write(FILE, io.BytesIO(found.text().encode()))

    def _fetch(self, manifest: Manifest) -> None:
        """Makes the folder's files anew, with their times of change."""

        def fetch(name: str, changed_ns: int) -> None:
            path = self._local / name
            with self._reached("read"), replacing(path) as part:
                self._there.copy_to(f"{FILES}/{name}", part)
                os.utime(part, ns=(changed_ns, changed_ns))

        with ThreadPoolExecutor(THREADS) as threads:
            for done in [threads.submit(fetch, name, changed) for name, (_, changed) in manifest.files.items()]:
                done.result()

    @contextmanager
    def _reached(self, how: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise InfrastructureError(f"{error.filename or self._there.path} is gone") from error
        except OSError as error:
            raise InfrastructureError(f"{self._there.path} can't be {how}: {str(error).splitlines()[0]}") from error


def new_token() -> str:
    return secrets.token_hex(8)


def files_of(folder: Path) -> Iterator[tuple[str, Path]]:
    """The files of a run's folder that are copied, with their paths in it; hidden ones are half written. Of links to
    folders, those that stand for folders of the run are followed."""
    for top, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".") and _is_own(folder, Path(top, name))]
        for path in (Path(top, name) for name in names if not name.startswith(".")):
            name = path.relative_to(folder).as_posix()
            kept = KEPT_OF.get(name.split("/")[0], (path.name,))
            beside = name.endswith(tuple(DATABASE + end for end in BESIDE))
            if path.name not in kept or beside or name.startswith(LEFT_OUT):
                continue
            if path.is_file() and not path.is_symlink():
                yield name, path


def _is_own(run: Path, folder: Path) -> bool:
    """Whether a folder in a run's tree is no link, or a link in the place of one that the run writes."""
    return not folder.is_symlink() or folder.relative_to(run).as_posix() in (*WRITTEN, *REPLACED)


def _state(path: Path) -> tuple[int, int]:
    """The size and the time of the last change, which a database may have beside it."""
    found = [path.stat()]
    if path.suffix == DATABASE:
        found += [beside.stat() for end in BESIDE if (beside := path.with_name(path.name + end)).exists()]
    return found[0].st_size, max(one.st_mtime_ns for one in found)


def _snapshot(path: Path, copy: Path) -> Path:
    """A whole copy of a database that others may write to. Raises FileNotFoundError if it is gone."""
    try:
        reading = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        with closing(reading) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    except sqlite3.OperationalError as error:
        if path.exists():
            raise
        raise FileNotFoundError(path) from error
    return copy
