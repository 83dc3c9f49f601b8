"""Loads the weights of a running training job into a replica, version by version, while it serves.

look ── newest whole version ── read ── load: digests, pause, update, completeness, resume ── served
  ^                                                                                          |
  +------------------------------------ every few seconds <----------------------------------+
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from pickle import UnpicklingError

from actors.weights.manifest import Weights, serialise
from actors.weights.on_disk import published_file
from actors.weights.transport import Published
from coa.errors import SyncError, WeightsGone
from coa.json_object import JsonView
from coa.serving.following import Made

logger = logging.getLogger(__name__)
POLICY = "model."
"""Prefix of the policy's tensors in a learner's checkpoint; a value head has another prefix."""

Load = Callable[[int, Published | Weights], Awaitable[float]]


class Follower:
    """Follows a run for one replica. A version that can't be read or loaded is skipped with a warning, and the replica
    continues with its weights. Raises WeightsGone, after which the replica has no complete weights."""

    def __init__(
        self, look: Callable[[], Made | None], load: Load, *, every_s: float, read: "Read | None" = None
    ) -> None:
        """look: finds the newest weights. load: `actors.rollout.adapter.PolicyAdapter.load`."""
        self._look, self._load, self._every_s, self._read = look, load, every_s, read or read_weights
        self._seen: Made | None = None

    async def run(self) -> None:
        """Follows until it is cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.catch_up()

    async def catch_up(self) -> bool:
        """Loads the newest weights; returns whether new weights were loaded."""
        made = await asyncio.to_thread(self._look)
        if made is None or made == self._seen:
            return False
        self._seen = made
        try:
            weights = await asyncio.to_thread(self._read, made)
            pause_s = await self._load(made.version, weights)
        except WeightsGone:
            raise
        except (SyncError, OSError) as error:  # e.g. a checkpoint that the run has removed meanwhile
            logger.warning("version %d of %s is left out: %s", made.version, made.path, error)
            return False
        logger.info("version %d is served, after a pause of %.2f s", made.version, pause_s)
        return True


Read = Callable[[Made], Published | Weights]


def read_weights(made: Made) -> Published | Weights:
    """Reads a version's weights; raises SyncError or OSError."""
    return published_file(made.version, made.path) if made.finished else serialise(policy_of(made.path))


def policy_of(path: Path) -> JsonView:
    """The policy's tensors in a learner's checkpoint, by their Hugging Face names; raises SyncError where they are not
    all there: with ZeRO-3 they are sharded, with adapters the frozen ones are left out, and a file may be cut short.
    Nothing in the file is run: it is read as tensors and plain data."""
    import torch

    try:
        states = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        states["module"]
    except (RuntimeError, UnpicklingError, EOFError, KeyError) as error:
        raise SyncError(f"not a whole checkpoint: {error}") from error
    if states.get("frozen_param_shapes") or any(not tensor.numel() for tensor in states["module"].values()):
        raise SyncError("its weights are sharded or adapters: only a finished model of such a run can be followed")
    names = states["module"].items()
    return {name.removeprefix(POLICY): tensor for name, tensor in names if name.startswith(POLICY)}
