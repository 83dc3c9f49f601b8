"""A task as columns of a Parquet file: whatever is kept of a task's runs has these beside its own."""

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from coa.types import Task

TASK_COLUMNS = [
    ("task_id", pa.string()),
    ("attempt", pa.int64()),
    ("question", pa.string()),
    ("answers", pa.list_(pa.string())),
    ("profile", pa.string()),
    ("family", pa.string()),
    ("grader", pa.string()),
]


def task_columns(task: Task, attempt: int) -> dict[str, Any]:
    return {
        "task_id": task.id,
        "attempt": attempt,
        "question": task.question,
        "answers": list(map(whole, task.answers)),
        "profile": task.profile,
        "family": task.family,
        "grader": task.grader,
    }


def task_of(row: Mapping[str, Any]) -> Task:
    return Task(
        id=row["task_id"],
        question=row["question"],
        answers=tuple(row["answers"]),
        profile=row["profile"],
        family=row["family"],
        grader=row["grader"],
    )


def whole_texts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: whole(value) if isinstance(value, str) else value for key, value in row.items()}


def whole(text: str) -> str:
    """JSON from the web may hold half a surrogate pair, which Parquet does not take; `Codec.text` does the same."""
    return text.encode(errors="replace").decode()
