"""Tasks from a user's file: JSON lines, a JSON array or Parquet, one row per task, in either of two layouts.

    {"question": "...", "answer": "7" or ["7", "seven"], "profile": .., "id": .., "family": .., "grader": ..}
    {"prompt": [{"role": "user", "content": "INSTRUCTIONS Task: QUESTION"}], "data_source": "aime24",
     "reward_model": {"ground_truth": "204"}, "extra_info": {"index": "0"}}

The second is the layout of the published benchmarks, with an agent's instructions baked into the prompt.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coa.errors import UserError
from coa.profiles import PROFILES
from coa.rewards import GRADERS
from coa.seeds import fraction
from coa.types import Task

Row = dict[str, Any]

MATHS_SOURCES = frozenset({"math500", "aime24", "aime25", "amc23", "olympiadbench"})
MHQA_SOURCES = frozenset({"nq", "triviaqa", "hotpotqa", "popqa", "2wikimultihopqa", "musique", "bamboogle"})
TESTS = "tests"
"""Grader of programming tasks, whose one answer is the JSON text of their tests."""

_BAKED_IN = re.compile(r"\A(?P<instructions>.*?<answer>.*?)\s(?:Task|Question):\s*(?P<question>.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a row came from, for messages: `tasks.jsonl, line 3`."""

    path: Path
    unit: str
    number: int

    def error(self, why: str) -> UserError:
        return UserError(f"{self.path}, {self.unit} {self.number}: {why}")


def load_tasks(path: Path | str, *, profile: str = "mhqa") -> tuple[Task, ...]:
    """The tasks of a .jsonl, .json or .parquet file; `profile` is for rows that tell none.

    Raises UserError, one line that names the file and the row, for a file or a row that is not as described above.
    """
    path = Path(path)
    tasks: dict[str, Task] = {}
    for place, row in _rows(path):
        task = _published(row, place, profile) if "reward_model" in row else _plain(row, place, profile)
        if task.id in tasks:
            if "id" in row:
                raise place.error(f"id {task.id!r} was used before")
            # Published files that were merged count from 0 again.
            task = replace(task, id=f"{task.id}-{place.unit}-{place.number}")
        tasks[task.id] = task
    if not tasks:
        raise UserError(f"{path}: no tasks in it")
    return tuple(tasks.values())


def split(tasks: Iterable[Task], held_out_share: float) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Training and held-out tasks; the side of a task depends on its id alone, so files may grow."""
    tasks = tuple(tasks)
    held_out = {task.id for task in tasks if fraction("split", task.id) < held_out_share}
    return (
        tuple(task for task in tasks if task.id not in held_out),
        tuple(task for task in tasks if task.id in held_out),
    )


def _rows(path: Path) -> Iterator[tuple[_Place, Row]]:
    readers = {".jsonl": _json_lines, ".json": _json_array, ".parquet": _parquet}
    if path.suffix not in readers:
        raise UserError(f"{path}: tasks come in files that end in {', '.join(readers)}")
    try:
        yield from readers[path.suffix](path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {(error.strerror or str(error)).splitlines()[0]}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _json_lines(path: Path) -> Iterator[tuple[_Place, Row]]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                place = _Place(path, "line", number)
                yield place, _object(_parse_json(line.rstrip(), path, number), place)


def _json_array(path: Path) -> Iterator[tuple[_Place, Row]]:
    rows = _parse_json(path.read_text(encoding="utf-8-sig"), path, 1)
    if not isinstance(rows, list):
        raise UserError(f"{path}: not a JSON array of tasks; one object per line goes into a .jsonl file")
    for number, row in enumerate(rows, start=1):
        place = _Place(path, "row", number)
        yield place, _object(row, place)


def _parquet(path: Path) -> Iterator[tuple[_Place, Row]]:
    import pyarrow  # slow to import
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches():
                for row in batch.to_pylist():
                    number += 1
                    yield _Place(path, "row", number), {key: value for key, value in row.items() if value is not None}
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from error


def _parse_json(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = _Place(path, "line", first_line + error.lineno - 1)
        raise place.error(f"not JSON: {error.msg} at column {error.colno}") from error


def _object(row: Any, place: _Place) -> Row:
    if not isinstance(row, dict):
        raise place.error("not a JSON object")
    return row


def _plain(row: Row, place: _Place, profile: str) -> Task:
    source = str(row.get("data_source") or "")
    profile = str(row.get("profile") or _profile_of_source(source) or profile)
    grader = str(row.get("grader") or ("math" if source.lower() in MATHS_SOURCES else "exact"))
    if profile not in PROFILES:
        raise place.error(f"unknown profile {profile!r}: known are {', '.join(PROFILES)}")
    if grader not in GRADERS:
        raise place.error(f"unknown grader {grader!r}: known are {', '.join(GRADERS)}")
    question = row.get("question")
    if not isinstance(question, str) or not question.strip():
        raise place.error("no `question`")
    name = row.get("id")
    return Task(
        id=f"{source or place.path.stem}-{place.number - 1}" if name is None else str(name),
        question=question.strip(),
        answers=_answers(row.get("answer"), "answer", place),
        profile=profile,
        family=str(row.get("family") or source or place.path.stem),
        grader=grader,
    )


def _published(row: Row, place: _Place, profile: str) -> Task:
    try:
        content = "\n".join(message["content"] for message in row["prompt"])
        truth = row["reward_model"]["ground_truth"]
        index = (row.get("extra_info") or {}).get("index", place.number - 1)
    except (KeyError, TypeError, AttributeError) as error:
        raise place.error("no `prompt` with messages, or no `reward_model.ground_truth`") from error
    baked_in = _BAKED_IN.match(content)
    instructions, question = baked_in.group("instructions", "question") if baked_in else ("", content)
    source = str(row.get("data_source") or place.path.stem)
    profile = _profile_of_source(source) or _profile_of_instructions(instructions) or profile
    return Task(
        id=f"{source}-{index}",
        question=question.strip(),
        answers=_answers(_target(truth), "reward_model.ground_truth", place),
        profile=profile,
        family=source,
        grader=(TESTS if row.get("ability") == "coding" else "math") if profile == "code" else "exact",
    )


def _target(truth: Any) -> Any:
    """Some files wrap the answer: {"target": [...], "question": ...}, as an object or as its JSON text."""
    if isinstance(truth, str) and truth.lstrip().startswith("{"):
        try:
            wrapped = json.loads(truth)
        except json.JSONDecodeError:
            return truth  # LaTeX may begin with a brace
    else:
        wrapped = truth
    return wrapped["target"] if isinstance(wrapped, dict) and "target" in wrapped else truth


def _answers(answer: Any, key: str, place: _Place) -> tuple[str, ...]:
    aliases = answer if isinstance(answer, list) else [answer]
    texts = tuple(str(alias).strip() for alias in aliases if type(alias) in (str, int, float))
    if len(texts) < len(aliases) or not texts or not all(texts):
        raise place.error(f"no `{key}`: a text, or a list of accepted texts")
    return texts


def _profile_of_source(source: str) -> str | None:
    if source.lower() in MATHS_SOURCES:
        return "code"
    return "mhqa" if source.lower() in MHQA_SOURCES else None


def _profile_of_instructions(instructions: str) -> str | None:
    """The profile whose tools the baked-in instructions speak of."""
    for profile in sorted(PROFILES.values(), key=lambda profile: -len(profile.tools)):
        if all(tag.name in instructions for tag in profile.tools):
            return profile.name
    return None
