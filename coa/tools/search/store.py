"""Stores what is built from a corpus on disk, so that it is built once: its passages, and the indexes over them.

The folder beside a corpus contains everything that was built from it, each in its own folder:

    wiki-18.jsonl.index/passages-3f0c.../    made_from.json and what `coa.tools.search.corpus` wrote
    wiki-18.jsonl.index/bm25-91aa.../        made_from.json and the arrays of bm25s
    wiki-18.jsonl.index/dense-07d2.../       made_from.json and an index of faiss

The suffix is a hash of made_from.json: for passages the corpus's size and modification time; for an index the passages'
hash, the settings and the library's version. A folder that was made from anything else has another name, and is never
opened. A corpus that was touched or copied is read again, which takes minutes for millions of passages, but its indexes
remain valid.
"""

import fcntl
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from coa.errors import DiskFull, UserError
from coa.storage.files import replacing_folder
from coa.tools.search.corpus import Passages, read_corpus, write_passages

T = TypeVar("T")
Say = Callable[[str], None]
"""Shows a line on what is being built, and on the progress."""

SAY_EVERY_S = 10.0
_MADE_FROM = "made_from.json"


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Store:
    """The files that are built from one corpus, each on first use."""

    corpus: Path
    folder: Path
    say: Say = to_stderr

    def passages(self) -> Passages:
        """The corpus's passages; raises UserError for a corpus that is missing or malformed."""

        def build(folder: Path) -> None:
            before = self._state()
            write_passages(self.count(read_corpus(self.corpus), "passages read"), folder)
            if self._state() != before:
                raise UserError(f"corpus {self.corpus}: changed while it was read")

        return Passages(self._complete("passages", {"corpus": self._state(), "layout": 1}, build))

    def index(
        self, name: str, passages: Passages, settings: Mapping[str, object], build: Callable[[Path], None]
    ) -> Path:
        """The folder of an index that `build` made from the passages, now or earlier; raises UserError."""
        corpus = {"name": self.corpus.name, "sha256": passages.sha256}
        return self._complete(name, {"corpus": corpus, **settings}, build)

    def _complete(self, name: str, made_from: Mapping[str, object], build: Callable[[Path], None]) -> Path:
        """The folder of what was built, which is complete or absent. One process builds it while others wait.

        Raises UserError if it cannot be written, and what `build` raises.
        """
        text = json.dumps(made_from, indent=1, sort_keys=True)
        made = self.folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if made.is_dir():
            return made
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f"{name}.lock").open("w") as lock:
                self._wait_for(lock.fileno(), name)
                if not made.is_dir():
                    self._build(made, text, build)
                    self._remove_outdated(name, made_from["corpus"])
        except DiskFull as error:
            raise UserError(str(error)) from error
        except OSError as error:
            raise UserError(f"index folder {self.folder}: {error.strerror or error}") from error
        return made

    def count(self, items: Iterable[T], done: str) -> Iterator[T]:
        """Yields the items and shows progress now and then: "wiki-18.jsonl: 400,000 passages read, 31 s"."""
        started = said = time.monotonic()
        for count, item in enumerate(items):
            now = time.monotonic()
            if now - said > SAY_EVERY_S:
                self.say(f"{self.corpus.name}: {count:,} {done}, {now - started:.0f} s")
                said = now
            yield item

    def _state(self) -> dict[str, object]:
        try:
            stat = self.corpus.stat()
        except OSError as error:
            raise UserError(f"corpus {self.corpus}: {error.strerror}") from error
        return {"name": self.corpus.name, "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}

    def _wait_for(self, lock: int, name: str) -> None:
        """Takes the file lock, which the kernel releases when its holder dies."""
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.say(f"{self.corpus.name}: waiting for another process that builds {name}")
            fcntl.flock(lock, fcntl.LOCK_EX)

    def _build(self, made: Path, made_from: str, build: Callable[[Path], None]) -> None:
        self.say(f"{self.corpus.name}: building {made}")
        for left in self.folder.glob(f".{made.name.partition('-')[0]}-*.partial"):  # left by a killed process
            shutil.rmtree(left)
        with replacing_folder(made) as part:
            build(part)
            (part / _MADE_FROM).write_text(made_from)

    def _remove_outdated(self, name: str, state: object) -> None:
        """Removes what was built from an earlier state of this corpus; processes that have it open can still read
        it."""
        for record in self.folder.glob(f"{name}-*/{_MADE_FROM}"):
            corpus = json.loads(record.read_text())["corpus"]
            if corpus["name"] == self.corpus.name and corpus != state:
                shutil.rmtree(record.parent)
