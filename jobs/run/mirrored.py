"""The copy of a run in `checkpoints.storage`: made while the run works, and fetched where its folder is lost."""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from coa.errors import InfrastructureError, UserError
from coa.storage.holder import this_process
from coa.storage.mirror import Manifest, Mirror
from jobs.recipe.resume import check_same
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import CONFIG, RunDir, Stored

COPY_S = 20.0
"""Seconds between two copies. At each checkpoint there is one besides."""
NAME = "storage"


@dataclass(frozen=True, slots=True)
class Lost:
    """A run whose folder is lost and whose copy is in `checkpoints.storage`."""

    config: Recipe
    stored: Stored
    mirror: Mirror
    manifest: Manifest

    @property
    def place(self) -> str:
        """Where the copy is."""
        return self.stored.open().path

    def check(self) -> None:
        """Raises UserError if the copy is of a run with other settings."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, CONFIG)
            if self.mirror.read(CONFIG, path):
                check_same(path, self.config, where=self.place)

    def fetch(self, console: Console) -> None:
        """Makes the folder anew; nothing else may work in it. Raises UserError if the run works elsewhere."""
        self.mirror.begin_anew(self.manifest, partial(console.waiting, NAME))
        replace(self.stored, token=self.mirror.token).write(Path(self.config.run_dir).resolve())
        console.say(f"the run goes on from its copy in {self.place} (to begin anew, choose another run_dir)")


def lost_run(config: Recipe) -> Lost | None:
    """The copy of the run if its folder is lost; None if it is there, or if there is no copy."""
    folder, storage = Path(config.run_dir).resolve(), config.checkpoints.storage
    if storage is None or Stored.read(folder) is not None:
        return None
    stored = Stored.new(folder, storage)
    mirror = Mirror(folder, stored.open(), this_process(), token="")
    manifest = mirror.manifest()
    return None if manifest is None else Lost(config, stored, mirror, manifest)


@contextmanager
def mirrored(run: RunDir) -> Iterator[None]:
    """Copies the run's folder to `checkpoints.storage` now and then within the context, and at its end. Does nothing if
    that is not set. Raises UserError if another process works on the run, or the folder is behind."""
    if run.config.checkpoints.storage is None:
        yield
        return
    there = Stored.read(run.folder)
    stored = there or Stored.new(run.folder, run.config.checkpoints.storage)
    mirror = Mirror(run.folder, stored.open(), this_process(), stored.token)
    mirror.begin(partial(run.console.waiting, NAME), new=there is None)
    stored.write(run.folder)
    run.mirror = mirror
    ended = threading.Event()

    def copy() -> None:
        said = False
        while not ended.wait(COPY_S):
            try:
                mirror.update()
                said = False
            except (InfrastructureError, UserError) as error:  # the next checkpoint, or the end, raises it
                if not said:
                    run.console.say(f"{error}; the copy of the run is tried again")
                said = True

    copying = threading.Thread(target=copy, name="mirror", daemon=True)
    copying.start()

    def end() -> None:
        ended.set()
        copying.join()
        with run.console.waiting(NAME, f"copying the run to {stored.storage}"):
            mirror.update(ended=True)

    try:
        yield
    except BaseException:
        try:
            end()
        except (InfrastructureError, UserError) as error:
            run.console.say(str(error))
        raise
    end()
