"""A way for weights: through a folder that the learners' nodes and the engines' nodes all see.

COA_EXTENSIONS=docs.examples.folder_transport coa train --recipe tiny run_dir=runs/folder rl.weights.transport=folder
"""

import os
from pathlib import Path
from typing import Any

from actors.weights.on_disk import FilePlace, FileReceiver
from actors.weights.transport import Published, Sender, WeightTransport
from actors.weights.transports import TRANSPORTS


class FolderSender(Sender):
    def __init__(self, ranks: Any, store: Any) -> None:
        self.ranks, self.folder = ranks, Path(os.environ.get("COA_WEIGHTS_FOLDER", "weights"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.written: list[Path] = []

    def send(self, parts: Any, version: int, name: str) -> Published | None:
        """Runs on every rank: each writes its own part of the file, and finds the digests of some buckets.

        A file is written once: an engine may still read an older one, and whoever has mapped a file keeps it although
        it is removed."""
        path = self.folder / f"{name}.safetensors"
        self.ranks.write(path, parts)
        manifest = self.ranks.seal(path, parts.layout, version)
        self.written = [*self.written, path][-3:]
        if self.ranks.rank == 0 and len(self.written) == 3:
            self.written[0].unlink(missing_ok=True)
        place = FilePlace(str(path.resolve()), len(parts.layout.header()))
        return Published(manifest=manifest, transport="folder", place=place) if self.ranks.rank == 0 else None


TRANSPORTS.register("folder", WeightTransport(sender=FolderSender, receiver=FileReceiver()))
