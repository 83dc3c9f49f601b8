"""Loads tasks from data sets: a user's own rows, those of published benchmarks, and the published training files.

    {"question": "...", "answer": "7" or ["7", "seven"], "profile": .., "id": .., "family": .., "grader": ..}
    {"prompt": [{"role": "user", "content": "INSTRUCTIONS Task: QUESTION"}], "data_source": "aime24",
     "reward_model": {"ground_truth": "204"}, "extra_info": {"index": "0"}}

The prompt of the second form includes an agent's instructions, which are cut off. A row whose `data_source` (or whose
file's name) names a benchmark of `coa.tasks.published.table` is read as a row of it, and has its profile and grader.
"""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from coa.agent.profiles import PROFILES
from coa.errors import UserError
from coa.grading.equivalence import MAX_BRACKETS, MAX_CHARS, comparable
from coa.grading.graders import GRADERS, grader_of, in_place_of
from coa.grading.maths import MATHS
from coa.grading.programs import TESTS
from coa.registry import Registry
from coa.seeds import fraction
from coa.tasks.published.benchmark import Benchmark
from coa.tasks.published.item import BadRow, Item, Row, plain
from coa.tasks.published.programs import checked
from coa.tasks.published.source import Location, Rows, fetch, read_rows
from coa.tasks.published.table import find, named
from coa.types import Task

_NAMED_PATH = re.compile(r"(?P<name>[\w-]+)=(?P<path>.+)", re.DOTALL)
_BAKED_IN = re.compile(r"\A(?P<instructions>(?>.*?<answer>).*?)\s(?:Task|Question):\s*(?P<question>.*)\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Source:
    """The source of tasks: a path, a benchmark on the hub, or a path that contains a benchmark."""

    path: Path | None
    """A file or folder; None for the benchmark's data set on the hub."""
    benchmark: Benchmark | None
    """The benchmark of the rows; None if the rows name it themselves."""


def source(spec: str) -> Source:
    """Reads `tasks.jsonl`, `aime24` or `math500=/data/math500.parquet`; raises UserError for an unknown benchmark.

    A benchmark's name always means the benchmark, even if there is a file of that name; write `./aime24` for the path.
    """
    if known := named(spec):
        return Source(None, known)
    if Path(spec).exists():
        return Source(Path(spec), None)
    if pair := _NAMED_PATH.fullmatch(spec):
        return Source(Path(pair["path"]), find(pair["name"]))
    if "/" in spec or Path(spec).suffix:
        return Source(Path(spec), None)
    return Source(None, find(spec))


def load(
    spec: str,
    *,
    profile: str = "mhqa",
    grader: str | None = None,
    overrule: bool = False,
    rows: int | None = None,
) -> tuple[Task, ...]:
    """The first `rows` tasks (None for all) of a specification in the form of `source`; see `load_tasks`."""
    found = source(spec)
    path = found.path
    if path is None:
        assert found.benchmark is not None
        path = fetch(found.benchmark.hub)
    return load_tasks(path, profile=profile, grader=grader, overrule=overrule, benchmark=found.benchmark, rows=rows)


def load_tasks(
    path: Path | str,
    *,
    profile: str = "mhqa",
    grader: str | None = None,
    overrule: bool = False,
    benchmark: Benchmark | None = None,
    rows: int | None = None,
) -> tuple[Task, ...]:
    """The tasks of a file or folder that `coa.tasks.published.source` reads.

    profile: for rows that name none. grader: for open questions whose rows name none; None takes the benchmark's, or
    the one that `coa.grading.graders` has for the profile. Programs, mathematics and tasks with a user's own grader
    always keep their graders. overrule: whether `profile` overrides the profiles of rows and benchmarks.

    Raises UserError, one line that names the file and the row, for a file or a row that is not as described above.
    """
    path = Path(path)
    tasks: dict[str, Task] = {}
    read = read_rows(path, benchmark and benchmark.hub)
    for location, task, own_id in islice(_tasks(read, _Asked(profile, grader, overrule), benchmark), rows):
        if task.id in tasks:
            if own_id:
                raise location.error(f"id {task.id!r} was used before")
            # Published files that were merged repeat the numbers from 0.
            task = replace(task, id=f"{task.id}-{location.unit}-{location.number}")
        tasks[task.id] = task
    if not tasks:
        raise UserError(f"{path}: no tasks in it")
    return tuple(tasks.values())


def split(tasks: Iterable[Task], held_out_share: float) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Training and held-out tasks: round(share * n) of n tasks are held out, chosen by a hash of their ids.

    In a file that grows, a few of the old tasks may change sides.
    """
    tasks = tuple(tasks)
    drawn = sorted(tasks, key=lambda task: (fraction("split", task.id), task.id))
    held_out = {task.id for task in drawn[: round(held_out_share * len(tasks))]}
    return (
        tuple(task for task in tasks if task.id not in held_out),
        tuple(task for task in tasks if task.id in held_out),
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """Settings for all rows; see `load_tasks`."""

    profile: str
    grader: str | None
    overrule: bool


def _tasks(rows: Rows, asked: _Asked, of: Benchmark | None) -> Iterator[tuple[Location, Task, bool]]:
    """Yields the location of each row, its task, and whether the task's id is the row's own."""
    for location, row in rows:
        benchmark = of or named(str(row.get("data_source") or location.path.stem))
        try:
            if "reward_model" in row:
                task, own_id = _published(row, location, asked, benchmark), False
            else:
                item = (benchmark.read if benchmark else plain)(row)
                task = item and _task(item, row, location, asked, benchmark)
                own_id = item is not None and item.id is not None
        except BadRow as error:
            raise location.error(str(error)) from error
        if task is not None:
            yield location, task, own_id


def _task(item: Item, row: Row, location: Location, asked: _Asked, benchmark: Benchmark | None) -> Task:
    """The task of a row. The row's own settings take precedence; then, for open questions, the requested grader; then
    the settings of the benchmark, and the defaults."""
    family = benchmark.name if benchmark else str(row.get("data_source") or location.path.stem)
    name = str(location.number - 1) if item.id is None else item.id
    own = str(row.get("profile") or (benchmark.profile if benchmark else asked.profile))
    profile = asked.profile if asked.overrule else own
    of_profile = in_place_of(grader_of(own, item.answers), grader_of(profile, item.answers))
    default = benchmark.grader if benchmark else of_profile
    grader = str(row.get("grader") or in_place_of(default, asked.grader))
    _check_known(PROFILES, own, profile)
    _check_known(GRADERS, grader, asked.grader or grader)
    _check_answers(item.answers, grader)
    return Task(
        id=name if item.id is not None and benchmark is None else f"{family}-{name}",
        question=item.question,
        answers=item.answers,
        profile=profile,
        family=str(row.get("family") or (f"{family}/{item.part}" if item.part else family)),
        grader=grader,
    )


def _check_known(known: Registry[Any], *names: str) -> None:
    """Raises BadRow for a name that is not in `known`."""
    for name in names:
        try:
            known.find(name)
        except UserError as error:
            raise BadRow(str(error)) from error


def _check_answers(answers: Sequence[str], grader: str) -> None:
    """Raises BadRow for answers that the grader cannot compare with any answer."""
    if grader == TESTS:
        if len(answers) > 1:
            raise BadRow("more than one `answer`: a program's tests are one JSON text")
        checked(answers[0])
    if grader == MATHS and not all(map(comparable, answers)):
        raise BadRow(f"an `answer` of more than {MAX_CHARS} characters or {MAX_BRACKETS} brackets equals nothing")


def _published(row: Row, location: Location, asked: _Asked, benchmark: Benchmark | None) -> Task | None:
    """The task of a row of the published files, whose question and answer are extracted; None if the row is in another
    layout."""
    try:
        content = "\n".join(message["content"] for message in row["prompt"])
        truth = row["reward_model"]["ground_truth"]
        index = (row.get("extra_info") or {}).get("index", location.number - 1)
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRow("no `prompt` with messages, or no `reward_model.ground_truth`") from error
    baked_in = _BAKED_IN.match(content)
    instructions, question = baked_in.group("instructions", "question") if baked_in else ("", content)
    plain_row = {"question": question, "answer": _target(truth), "id": index, "data_source": row.get("data_source")}
    if benchmark is None:
        programs = row.get("ability") == "coding"
        profile = _profile_of(instructions, programs=programs) or asked.profile
        plain_row["profile"] = profile
        if programs:
            plain_row["answer"] = str(truth)
            plain_row["grader"] = TESTS
        elif profile == "code":
            plain_row["grader"] = MATHS  # the published plain answers to programs are numbers and formulas
    item = (benchmark.read if benchmark else plain)(plain_row)
    task = item and _task(item, plain_row, location, asked, benchmark)
    # Rows of different sources may have the same number as id.
    return task and replace(task, id=f"{benchmark.name if benchmark else task.family}-{index}")


def _target(truth: Any) -> Any:
    """The answer, unwrapped from {"target": [...], "question": ...} if a file has this form, as object or JSON text."""
    if isinstance(truth, str) and truth.lstrip().startswith("{"):
        try:
            wrapped = json.loads(truth)
        except (ValueError, RecursionError):
            return truth  # LaTeX may begin with a brace
    else:
        wrapped = truth
    return wrapped["target"] if isinstance(wrapped, dict) and "target" in wrapped else truth


def _profile_of(instructions: str, *, programs: bool) -> str | None:
    """The profile with the fewest tools that has every tool that the instructions in a prompt name."""
    tools = {tag.name for profile in PROFILES.values() for tag in profile.tools}
    spoken_of = {tool for tool in tools if re.search(rf"[<'\"`]{tool}\b", instructions)}
    if not spoken_of:
        return None
    if spoken_of == {"code"}:
        return "code" if programs else "math"
    able = [profile for profile in PROFILES.values() if spoken_of <= {tag.name for tag in profile.tools}]
    return min(able, key=lambda profile: len(profile.tools)).name if able else None
