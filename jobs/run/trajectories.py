"""Episodes as Parquet: one row each, to be read with pandas."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from coa.agent.records import EpisodeRecord
from coa.grading.graders import TESTS
from coa.json_object import Json
from coa.planning.workload import Recorded, RecordedEpisode
from coa.storage.columns import whole_texts
from coa.storage.files import replacing
from coa.types import Task

SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("family", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("group", pa.string()),
        ("sample", pa.int64()),
        ("reward", pa.float64()),
        ("correct", pa.bool_()),
        ("well_formed", pa.bool_()),
        ("repairs", pa.list_(pa.string())),
        ("status", pa.string()),
        ("answer", pa.string()),
        ("text", pa.string()),
        ("turns", pa.int64()),
        ("tool_calls", pa.list_(pa.string())),
        ("tokens", pa.int64()),
        ("policy_tokens", pa.int64()),
        ("tokens_sent", pa.int64()),
        ("oldest", pa.int64()),
        ("newest", pa.int64()),
    ]
)


def write_episodes(path: Path, rows: Iterable[tuple[Task, int | str, EpisodeRecord]]) -> None:
    """Writes a row per (task, group or mode, episode), atomically. Without any, the table has no rows."""
    found = [whole_texts(_row(task, str(group), episode)) for task, group, episode in rows]
    with replacing(path) as part:
        pq.write_table(pa.Table.from_pylist(found, schema=SCHEMA), part)


def _row(task: Task, group: str, episode: EpisodeRecord) -> Json:
    return {
        "task_id": task.id,
        "family": task.family,
        "question": task.question,
        # A program's tests may be megabytes, and the task's id identifies them.
        "answers": [] if task.grader == TESTS else list(task.answers),
        "group": group,
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
    }


class Outcome(NamedTuple):
    """The part of an episode that `Algorithm.keep` reads. Files record only whether it was right, which is its grade
    here."""

    grade: float
    reward: float


def read_groups(folder: Path, keep: Callable[[Sequence[Outcome]], bool], files: int = 20) -> list[Recorded]:
    """The groups in the last `files` files (one per step) of a run's `trajectories` in RL. keep: the algorithm's, which
    says whether a group is trained on."""
    columns = ["group", "correct", "reward", "turns", "tool_calls", "tokens", "policy_tokens"]
    found: dict[str, list[Json]] = defaultdict(list)
    for path in sorted(folder.glob("rl-*.parquet"))[-files:]:
        for row in pq.read_table(path, columns=columns).to_pylist():
            found[row["group"]].append(row)
    return [
        Recorded(
            episodes=tuple(
                RecordedEpisode(row["tokens"], row["policy_tokens"], row["turns"], tuple(row["tool_calls"]))
                for row in rows
            ),
            kept=keep([Outcome(float(row["correct"]), row["reward"]) for row in rows]),
        )
        for rows in found.values()
    ]
