"""Ways for weights on which one worker of an engine gets a byte that nobody has published."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from actors.weights.manifest import Manifest
from actors.weights.on_disk import FilePlace, FileReceiver
from actors.weights.transport import WeightTransport
from actors.weights.transports import TRANSPORTS

NAME = "damaged_for_{}"
"""Filled in with the worker's number."""
WORKERS = range(2)


class DamagedForOne(FileReceiver):
    def __init__(self, victim: int) -> None:
        self._victim = victim

    @contextmanager
    def receive(self, manifest: Manifest, prepared: FilePlace, worker: int) -> Iterator[NDArray[np.uint8]]:
        with super().receive(manifest, prepared, worker) as data:
            if worker == self._victim:
                data = data.copy()
                data[len(data) // 2] ^= 1
            yield data


for _worker in WORKERS:
    TRANSPORTS.register(NAME.format(_worker), WeightTransport(sender=None, receiver=DamagedForOne(_worker)))
