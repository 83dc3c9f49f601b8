"""The columns that describe a task in a Parquet file, shared by all tables with one row per run of a task."""

import pyarrow as pa

from coa.json_object import Json, JsonView
from coa.types import Task
from coa.unicode import whole

TASK_COLUMNS = [
    ("task_id", pa.string()),
    ("attempt", pa.int64()),
    ("question", pa.string()),
    ("answers", pa.list_(pa.string())),
    ("profile", pa.string()),
    ("family", pa.string()),
    ("grader", pa.string()),
    ("metadata", pa.string()),
]


def task_columns(task: Task, attempt: int) -> Json:
    return {
        "task_id": task.id,
        "attempt": attempt,
        "question": task.question,
        "answers": list(task.answers),
        "profile": task.profile,
        "family": task.family,
        "grader": task.grader,
        "metadata": task.metadata,
    }


def task_of(row: JsonView) -> Task:
    """The inverse of `task_columns`."""
    return Task(
        id=row["task_id"],
        question=row["question"],
        answers=tuple(row["answers"]),
        profile=row["profile"],
        family=row["family"],
        grader=row["grader"],
        metadata=row.get("metadata") or "",  # data sets of others need not have it
    )


def whole_texts(row: JsonView) -> Json:
    """The row with `whole` applied to each of its texts."""
    return {key: whole(value) if isinstance(value, str) else value for key, value in row.items()}
