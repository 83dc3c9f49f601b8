"""The rows of the distilled data set: one for each run that was kept."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pyarrow as pa

from coa.agent.grammar import THINK, Chain, parse, render
from coa.distill.filters import Kept
from coa.distill.stages import doubted_itself, interactions
from coa.json_object import Json, JsonView
from coa.storage.columns import TASK_COLUMNS, task_columns, task_of, whole_texts
from coa.types import Task
from coa.usage import Usage

SCHEMA = pa.schema(
    [
        *TASK_COLUMNS,
        ("text", pa.string()),
        ("copies", pa.int32()),
        ("source", pa.string()),
        ("team", pa.string()),
        ("models", pa.string()),  # JSON, role -> model
        ("interactions", pa.int32()),
        ("reflected", pa.bool_()),
        ("corrected", pa.bool_()),
        ("requests", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
        ("decisions", pa.string()),  # JSON, [{"stage", "outcome"}]
    ]
)
"""Columns of every data set; a world may add columns of text (`OwnColumns`)."""


@dataclass(frozen=True, slots=True)
class OwnColumns:
    """Columns of text that the rows of one world have besides those of SCHEMA."""

    names: tuple[str, ...] = ()
    value: Callable[[str, Task, Chain], str] = lambda name, task, chain: ""
    """(name, task, chain) -> the row's value in the column of that name."""

    def schema(self) -> pa.Schema:
        return pa.schema([*SCHEMA, *((name, pa.string()) for name in self.names)])


NO_COLUMNS = OwnColumns()
PROGRAM = "program"
"""Source of a row whose text is the answer of a program alone; its tokens are one of the program's contexts."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision of one stage of the filter on a run: `Decision("reflection", "kept of a sampled share")`."""

    stage: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A chain to imitate, `copies` times, and its source."""

    task: Task
    text: str
    """The chain as tag text."""
    attempt: int = 0
    copies: int = 1
    source: str = "team"
    """`team`, `import:SYSTEM`, `released` or PROGRAM."""
    team: str = ""
    models: tuple[tuple[str, str], ...] = ()
    """Pairs of role and model."""
    interactions: int
    """Number of activations of agents and tools; routing messages are not counted."""
    usage: Usage = field(default_factory=Usage)
    """Requests and tokens of language models in the whole run; zero for a further line of a run that has a row."""
    decisions: tuple[Decision, ...] = ()

    @property
    def chain(self) -> Chain:
        return parse(self.text).chain


def demonstration_of(kept: Kept, *, source: str = "team", decisions: Iterable[Decision] = ()) -> Demonstration:
    """The row of a kept run; `decisions` are those of the filter's stages."""
    transcript = kept.transcript
    return Demonstration(
        task=transcript.task,
        text=render(kept.chain),
        attempt=transcript.attempt,
        copies=kept.copies,
        source=source,
        team=transcript.team,
        models=transcript.models,
        interactions=interactions(transcript),
        usage=Usage() if kept.further else transcript.usage,
        decisions=tuple(decisions),
    )


def interactions_of(chain: Chain) -> int:
    """The steps of a chain without its transcript: each span is one, except thoughts, which belong to the next span."""
    return sum(span.tag != THINK for span in chain)


def to_row(row: Demonstration, own: OwnColumns = NO_COLUMNS) -> Json:
    task, chain = row.task, row.chain
    columns = {
        **task_columns(task, row.attempt),
        "text": row.text,
        "copies": row.copies,
        "source": row.source,
        "team": row.team,
        "models": json.dumps(dict(row.models)),
        "interactions": row.interactions,
        "reflected": any(span.tag == "reflection" for span in chain),
        "corrected": doubted_itself(chain),
        "requests": row.usage.requests,
        "prompt_tokens": row.usage.prompt_tokens,
        "completion_tokens": row.usage.completion_tokens,
        "decisions": json.dumps([{"stage": one.stage, "outcome": one.outcome} for one in row.decisions]),
        **{name: own.value(name, task, chain) for name in own.names},
    }
    return whole_texts(columns)


def from_row(row: JsonView) -> Demonstration:
    return Demonstration(
        task=task_of(row),
        text=row["text"],
        attempt=row["attempt"],
        copies=row["copies"],
        source=row["source"],
        team=row["team"],
        models=tuple(json.loads(row["models"]).items()),
        interactions=row["interactions"],
        usage=Usage(row["requests"], row["prompt_tokens"], row["completion_tokens"]),
        decisions=tuple(Decision(**one) for one in json.loads(row["decisions"])),
    )
