"""Episodes as Parquet: one row each, to be read with pandas."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coa.agent.records import EpisodeRecord
from coa.grading.graders import TESTS
from coa.planning.workload import Recorded, RecordedEpisode
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


def read_groups(folder: Path, files: int = 20) -> list[Recorded]:
    """The groups that ended before the last so many steps of a run's reinforcement, from its `trajectories`."""
    import pyarrow.parquet as pq

    columns = ["group", "correct", "turns", "tool_calls", "tokens", "policy_tokens"]
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob("rl-*.parquet"))[-files:]:
        for row in pq.read_table(path, columns=columns).to_pylist():
            found[row["group"]].append(row)
    return [
        Recorded(
            episodes=tuple(
                RecordedEpisode(row["tokens"], row["policy_tokens"], row["turns"], tuple(row["tool_calls"]))
                for row in rows
            ),
            # As grades go into the files: a group whose episodes are all right, or all wrong, says nothing.
            kept=len({row["correct"] for row in rows}) > 1,
        )
        for rows in found.values()
    ]
