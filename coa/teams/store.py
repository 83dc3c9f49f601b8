"""Transcripts on disk: Parquet with a row for each run, whose steps are JSON."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coa.errors import UserError
from coa.json_object import Json
from coa.storage.columns import TASK_COLUMNS, task_columns, task_of, whole_texts
from coa.storage.files import replacing
from coa.teams.transcript import AgentStep, Ending, Graded, Step, ToolStep, Transcript, UserStep
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


def step_to_json(step: Step) -> Json:
    """{"agent", "output"}, {"tool", "argument", "observation"} or {"user"}, and the other fields that differ from
    their defaults."""
    if isinstance(step, ToolStep):
        call = step.call
        fields = {"tool": call.tool, "argument": call.argument, "observation": step.observation}
        fields |= {"goal": call.goal} if call.goal else {}
        fields |= {"layout": call.layout} if call.layout != ToolCall("", "").layout else {}
    elif isinstance(step, UserStep):
        fields = {"user": step.text}
    else:
        fields = {"agent": step.agent, "output": step.output}
        usage = step.usage
        fields |= {"usage": [usage.requests, usage.prompt_tokens, usage.completion_tokens]} if usage != Usage() else {}
    return fields | ({"line": step.line} if step.line else {})


def step_from_json(fields: Json) -> Step:
    """The inverse of `step_to_json`."""
    line = fields.get("line", 0)
    if "tool" in fields:
        optional = {key: fields[key] for key in ("goal", "layout") if key in fields}
        return ToolStep(ToolCall(fields["tool"], fields["argument"], **optional), fields["observation"], line)
    if "user" in fields:
        return UserStep(fields["user"], line)
    return AgentStep(fields["agent"], fields["output"], line, Usage(*fields.get("usage", ())))


def write_transcripts(path: Path, runs: Iterable[Graded]) -> None:
    """Writes one file atomically."""
    rows = [_to_row(run) for run in runs]
    with replacing(path) as part:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), part, compression="zstd")


def read_transcripts(path: Path) -> Iterator[Graded]:
    """Yields the runs of a file, or of the `*.parquet` files of a folder in the order of their names. Reads batch by
    batch, so that memory does not grow with their number. Raises UserError for files that hold something else."""
    for file in _files(path):
        for batch in file.iter_batches(batch_size=256):
            yield from map(_from_row, batch.to_pylist())


def graders_in(path: Path) -> set[str]:
    """The graders of the answers that are not graded yet, among the runs that `read_transcripts` reads there. Reads
    only the columns that it needs; raises UserError as `read_transcripts` does."""
    columns = ["grader", "ending", "correct"]
    batches = (batch for file in _files(path) for batch in file.iter_batches(columns=columns))
    rows = (row for batch in batches for row in batch.to_pylist())
    return {row["grader"] for row in rows if row["correct"] is None and row["ending"] == Ending.ANSWERED}


def transcripts_at(path: Path) -> Path:
    """The transcripts of a run's folder, or the path itself if it is of transcripts."""
    return path / "teachers" if (path / "teachers").is_dir() else path


def kinds_in(path: Path) -> set[str]:
    """The kinds of teams of the runs that `read_transcripts` reads there; raises UserError as it does."""
    batches = (batch for file in _files(path) for batch in file.iter_batches(columns=["team"]))
    return {kind for batch in batches for kind in batch["team"].to_pylist()}


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
    """(task id, attempt) of each run of a file, and the total usage of all runs."""
    counted = ["requests", "prompt_tokens", "completion_tokens"]
    table = pq.read_table(path, columns=["task_id", "attempt", *counted])
    names = list(zip(table["task_id"].to_pylist(), table["attempt"].to_pylist(), strict=True))
    return names, Usage(*(sum(table[name].to_pylist()) for name in counted))


def _to_row(run: Graded) -> Json:
    transcript = run.transcript
    task, usage = transcript.task, transcript.usage
    fields = {
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
    return whole_texts(fields)


def _from_row(row: Json) -> Graded:
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
