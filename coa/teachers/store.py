"""Transcripts on disk: Parquet, one row a run, its steps as JSON. What was paid for is kept as it was said."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from coa.errors import UserError
from coa.files import replacing
from coa.task_columns import TASK_COLUMNS, task_columns, task_of, whole_texts
from coa.teachers.transcript import AgentStep, Ending, Graded, Step, ToolStep, Transcript
from coa.tools.base import ToolCall
from coa.usage import Usage

SCHEMA = pa.schema(
    [
        *TASK_COLUMNS,
        ("team", pa.string()),
        ("models", pa.string()),  # JSON, role -> model
        ("seed", pa.uint64()),
        ("ending", pa.string()),
        ("winner", pa.int32()),
        ("steps", pa.string()),  # JSON, see `step_to_json`
        ("answer", pa.string()),
        ("correct", pa.bool_()),
        ("objection", pa.string()),
        ("requests", pa.int64()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
    ]
)


def step_to_json(step: Step) -> dict[str, Any]:
    """{"agent", "output"} or {"tool", "argument", "observation"}, and what differs from the default of the rest."""
    if isinstance(step, ToolStep):
        call = step.call
        told = {"tool": call.tool, "argument": call.argument, "observation": step.observation}
        told |= {"goal": call.goal} if call.goal else {}
        told |= {"layout": call.layout} if call.layout != ToolCall("", "").layout else {}
    else:
        told = {"agent": step.agent, "output": step.output}
        usage = step.usage
        told |= {"usage": [usage.requests, usage.prompt_tokens, usage.completion_tokens]} if usage != Usage() else {}
    return told | ({"line": step.line} if step.line else {})


def step_from_json(told: dict[str, Any]) -> Step:
    line = told.get("line", 0)
    if "tool" in told:
        optional = {key: told[key] for key in ("goal", "layout") if key in told}
        return ToolStep(ToolCall(told["tool"], told["argument"], **optional), told["observation"], line)
    return AgentStep(told["agent"], told["output"], line, Usage(*told.get("usage", ())))


def write_transcripts(path: Path, runs: Iterable[Graded]) -> None:
    """One file, which appears whole or not at all."""
    rows = [_to_row(run) for run in runs]
    with replacing(path) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), part, compression="zstd")


def read_transcripts(path: Path) -> Iterator[Graded]:
    """The runs of a file, or of the `*.parquet` files of a folder in the order of their names; batch by batch, so that
    memory does not grow with their number. Raises UserError for files that hold something else."""
    for file in _files(path):
        for batch in file.iter_batches(batch_size=256):
            yield from map(_from_row, batch.to_pylist())


def graders_in(path: Path) -> set[str]:
    """What the answers that nobody graded yet are to be graded by, of the runs that `read_transcripts` reads there; no
    more than these columns is read. Raises UserError as it does."""
    columns = ["grader", "ending", "correct"]
    batches = (batch for file in _files(path) for batch in file.iter_batches(columns=columns))
    rows = (row for batch in batches for row in batch.to_pylist())
    return {row["grader"] for row in rows if row["correct"] is None and row["ending"] == Ending.ANSWERED}


def _files(path: Path) -> Iterator[pq.ParquetFile]:
    """Raises UserError for a file that holds something else than transcripts."""
    for file in sorted(path.glob("*.parquet")) if path.is_dir() else [path]:
        try:
            opened = pq.ParquetFile(file)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{file}: no transcripts there ({str(error).splitlines()[0]})") from error
        if missing := set(SCHEMA.names) - set(opened.schema_arrow.names):
            raise UserError(f"{file}: these are no transcripts: there is no column {min(missing)}")
        yield opened


def names_in(path: Path) -> tuple[list[tuple[str, int]], Usage]:
    """(task id, attempt) of each run of a file, and what all of them took."""
    counted = ["requests", "prompt_tokens", "completion_tokens"]
    table = pq.read_table(path, columns=["task_id", "attempt", *counted])
    names = list(zip(table["task_id"].to_pylist(), table["attempt"].to_pylist(), strict=True))
    return names, Usage(*(sum(table[name].to_pylist()) for name in counted))


def _to_row(run: Graded) -> dict[str, Any]:
    transcript = run.transcript
    task, usage = transcript.task, transcript.usage
    told = {
        **task_columns(task, transcript.attempt),
        "team": transcript.team,
        "models": json.dumps(dict(transcript.models)),
        "seed": transcript.seed,
        "ending": transcript.ending.value,
        "winner": transcript.winner,
        "steps": json.dumps([step_to_json(step) for step in transcript.steps], ensure_ascii=False),
        "answer": transcript.answer,
        "correct": run.correct,
        "objection": run.objection,
        "requests": usage.requests,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
    }
    return whole_texts(told)


def _from_row(row: dict[str, Any]) -> Graded:
    transcript = Transcript(
        task=task_of(row),
        attempt=row["attempt"],
        seed=row["seed"],
        steps=tuple(map(step_from_json, json.loads(row["steps"]))),
        ending=Ending(row["ending"]),
        team=row["team"],
        models=tuple(json.loads(row["models"]).items()),
        winner=row["winner"],
    )
    return Graded(transcript, row["correct"], row["objection"])
