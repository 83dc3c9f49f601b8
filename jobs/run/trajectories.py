"""Episodes as Parquet: one row each, to be read with pandas."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coa.agent.records import EpisodeRecord
from coa.grading.graders import TESTS
from coa.storage.files import replacing
from coa.types import Task


def write_episodes(path: Path, rows: Sequence[tuple[Task, int | str, EpisodeRecord]], **columns: Any) -> None:
    """(task, group or mode, episode) per row; `columns` are the same in every row. Appears whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(
        [
            {
                "task_id": task.id,
                "family": task.family,
                "question": task.question,
                # A program's tests may be megabytes: the task's id says which they are.
                "answers": [] if task.grader == TESTS else list(task.answers),
                "group": str(group),
                "sample": episode.sample,
                "reward": episode.reward,
                "correct": episode.correct,
                "well_formed": episode.well_formed,
                "repairs": list(episode.repairs),
                "status": episode.status.value,
                "answer": episode.answer,
                "text": episode.text,
                "turns": episode.turns,
                "tool_calls": list(episode.tool_calls),
                "tokens": episode.tokens,
                "policy_tokens": episode.policy_tokens,
                "tokens_sent": episode.tokens_sent,
                "oldest": episode.oldest,
                "newest": episode.newest,
                **columns,
            }
            for task, group, episode in rows
        ]
    )
    with replacing(path) as part:
        pq.write_table(table, part)
