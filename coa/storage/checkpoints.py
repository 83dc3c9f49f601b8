"""Repairs the folder in which Ray Train keeps a stage's checkpoints after a process was killed.

RUN/checkpoints/STAGE/checkpoint_manager_snapshot.json     Ray Train's record of the checkpoints
RUN/checkpoints/STAGE/checkpoint_TIME                      one folder per checkpoint, names sorted by time
"""

import json
import shutil
from importlib.metadata import version
from pathlib import Path

from coa.storage.files import write_atomically

RECORD = "checkpoint_manager_snapshot.json"


def mend(run: Path) -> None:
    """Repairs the folder so that learners can start from it: rewrites a truncated record, and removes checkpoints that
    the record does not name. run: the folder of a stage, to which no process is writing."""
    record = run / RECORD
    found = sorted(path for path in run.glob("checkpoint_*") if path.is_dir())
    if record.exists() and not _whole(record):
        # The record is written once the newest checkpoint in it is complete; the next checkpoint may have begun.
        write_atomically(record, _record_of([path.name for path in (found[:-1] or found)]))
    known = record.read_text() if record.exists() else ""
    for folder in found:
        if folder.name not in known:
            shutil.rmtree(folder)


def _whole(record: Path) -> bool:
    try:
        json.loads(record.read_text())
    except ValueError:  # Ray Train writes the record in place: a full disk or a kill leaves a part of it
        return False
    return True


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
