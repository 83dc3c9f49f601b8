"""The folders of a run that users let lead elsewhere by links, such as to a larger disk."""

import os
from pathlib import Path

from coa.errors import UserError
from coa.storage.files import target_of

WRITTEN = ("teachers", "data", "trajectories", "batches", "checkpoints", "exports")
"""Folders in which a run writes one file after another."""
REPLACED = ("checkpoints/tokenizer", "checkpoints/start", "checkpoints/sft-model", "model")
"""Folders that a run writes whole, in the place of what was there."""


def check_folders(run: Path) -> None:
    """Raises UserError, before a run that would end by it, for a folder of the run that can't be written or replaced:
    a file, a link that leads nowhere, or a disk of its own."""
    for path in (run / name for name in WRITTEN):
        if os.path.lexists(path) and not path.is_dir():
            what = f"a link to {path.readlink()}, which is no folder" if path.is_symlink() else "a file"
            raise UserError(f"{path} is {what}: a run needs a folder there")
    for path in (run / name for name in REPLACED):
        target_of(path)
