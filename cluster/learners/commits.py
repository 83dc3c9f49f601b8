"""Callbacks after Ray Train has committed a checkpoint: its measurements go to the driver, and older checkpoints are
removed.

Runs in Ray Train's controller, which is on the driver's node.
"""

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path

from ray.train import Checkpoint, UserCallback

from actors.handles import Handle
from actors.learner.buffer import BEGAN, Committed
from coa.json_object import Json
from coa.storage.checkpoints import CheckpointFolder
from coa.storage.digests import rank_files
from coa.storage.keeping import Keeping, superfluous

logger = logging.getLogger(__name__)


@dataclass
class Commits(UserCallback):
    """Keeps the checkpoints of a stage that its settings name, and no others."""

    folder: CheckpointFolder
    keeping: Keeping
    buffer: Handle
    """Handle of the TrajectoryBuffer, by which the driver hears of each checkpoint."""

    def after_report(self, run_context: object, metrics: list[Json], checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            return
        try:
            self._measure(Path(checkpoint.path).name, metrics)
            self.prune()
        except (OSError, ValueError) as error:  # the checkpoint is committed whether or not this works
            logger.warning("after a checkpoint in %s: %s", self.folder.path, error)

    def _measure(self, name: str, metrics: list[Json]) -> None:
        written = rank_files(self.folder.filesystem, self.folder.of(name))
        self.buffer.committed.remote(
            Committed(
                version=max(one["version"] for one in metrics),
                write_s=max(one.seconds for one in written),
                commit_s=time.time() - min(one[BEGAN] for one in metrics),
                size=sum(one.size for one in written),
            )
        )

    def prune(self) -> None:
        """Removes the checkpoints that are not to be kept."""
        for name in superfluous(self.folder.versions(), self.keeping.config, read_scores(self.keeping.scores)):
            self.folder.remove(name)


def read_scores(path: Path | None) -> dict[int, float]:
    """The scores of the evaluated versions; none before the first evaluation."""
    if path is None or not path.exists():
        return {}
    return {int(version): score for version, score in json.loads(path.read_text()).items()}
