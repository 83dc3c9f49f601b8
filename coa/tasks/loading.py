"""Loads tasks from data sets: a user's own rows, those of published benchmarks, and the published training files.

    {"question": "...", "answer": "7" or ["7", "seven"], "profile": .., "id": .., "family": .., "grader": ..,
     "metadata": ..}
    {"prompt": [{"role": "user", "content": "INSTRUCTIONS Task: QUESTION"}], "data_source": "aime24",
     "reward_model": {"ground_truth": "204"}, "extra_info": {"index": "0"}}

The prompt of the second form includes an agent's instructions, which are cut off. A row whose `data_source` (or whose
file's name) names a benchmark of `coa.tasks.published.table` is read as a row of it, and has its profile and grader.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import islice
from pathlib import Path

from coa.agent.profiles import PROFILES
from coa.errors import UserError
from coa.grading.equivalence import MAX_BRACKETS, MAX_CHARS, comparable
from coa.grading.graders import GRADERS, grader_of, in_place_of
from coa.grading.maths import MATHS
from coa.grading.programs import TESTS
from coa.json_object import Json
from coa.paths import local
from coa.seeds import fraction
from coa.storage.texts import stem_of, suffix_of
from coa.tasks.published.benchmark import Benchmark
from coa.tasks.published.item import BadRow, Item, Row, brief, called, plain
from coa.tasks.published.programs import checked
from coa.tasks.published.source import TABLES, Location, Rows, fetch, read_rows
from coa.tasks.published.table import find, find_benchmark
from coa.tasks.questions import question_key
from coa.tasks.remarks import SHOWN_BY_SPREADSHEETS
from coa.types import Task

_NAMED_PATH = re.compile(r"(?P<name>[\w-]+)=(?P<path>.+)", re.DOTALL)
_LIST_OF_TEXTS = re.compile(
    r"""\A(?:array\()?\[\s*+['"].*['"]\s*+\](?:,\s*dtype=\w+)?\)?\Z|\A\{\s*+'\w+':.*\}\Z""", re.DOTALL
)
_ERROR_OF_A_CELL = re.compile(r"#(?:N/A|REF!|VALUE!|DIV/0!|NAME\?|NULL!|NUM!|SPILL!|CALC!)")
DECIMALS_OF_ROUNDED = 5
"""Decimals that a spreadsheet shows at most of a number of more than 11 digits."""
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
    if known := find_benchmark(spec):
        return Source(None, known)
    path = Path(local(spec, "the file of tasks"))
    if path.exists():
        return Source(path, None)
    if pair := _NAMED_PATH.fullmatch(spec):
        return Source(Path(local(pair["path"], f"the file of {pair['name']}")), find(pair["name"]))
    if "/" in spec or path.suffix:
        return Source(path, None)
    return Source(None, find(spec))


def load(
    spec: str, *, profile: str = "mhqa", grader: str | None = None, overrule: bool = False, rows: int | None = None
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
    """Training and held-out tasks: round(share * n) of n tasks are held out, chosen by a hash of their questions. Tasks
    that ask the same question are on the same side; if they are too many to be held out together, they are trained on.

    In a file that grows, a few of the old tasks may change sides.
    """
    tasks = tuple(tasks)
    keys = [question_key(task.question) for task in tasks]
    asked, room = Counter(keys), round(held_out_share * len(tasks))
    held_out = set[str]()
    for key in sorted(asked, key=lambda key: (fraction("split", key), key)):
        if asked[key] <= room:
            held_out.add(key)
            room -= asked[key]
    pairs = list(zip(tasks, keys, strict=True))
    return (
        tuple(task for task, key in pairs if key not in held_out),
        tuple(task for task, key in pairs if key in held_out),
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
        benchmark = of or find_benchmark(_family_of(row, location))
        try:
            if "reward_model" in row:
                task, own_id = _published(row, location, asked, benchmark), False
            else:
                item = (benchmark.read if benchmark else plain)(row)
                task = item and _task(item, row, location, asked, benchmark)
                own_id = item is not None and item.id is not None
            if task is not None and suffix_of(location.path) in TABLES:
                task = replace(task, answers=tuple(text for answer in task.answers for text in _of_cell(answer)))
        except BadRow as error:
            raise location.error(str(error)) from error
        if task is not None:
            yield location, task, own_id


def _task(item: Item, row: Row, location: Location, asked: _Asked, benchmark: Benchmark | None) -> Task:
    """The task of a row. The row's own settings take precedence; then, for open questions, the requested grader; then
    the settings of the benchmark, and the defaults."""
    family = benchmark.name if benchmark else _family_of(row, location)
    name = str(location.number - 1) if item.id is None else item.id
    own = called(row, "profile") or (benchmark.profile if benchmark else asked.profile)
    profile = asked.profile if asked.overrule else own
    of_profile = in_place_of(grader_of(own, item.answers), grader_of(profile, item.answers))
    default = benchmark.grader if benchmark else of_profile
    grader = called(row, "grader") or in_place_of(default, asked.grader)
    _check_known(PROFILES.find, own, profile)
    _check_known(GRADERS.find, grader, asked.grader or grader)
    _check_answers(item.answers, grader)
    return Task(
        id=name if item.id is not None and benchmark is None else f"{family}-{name}",
        question=item.question,
        answers=item.answers,
        profile=profile,
        family=called(row, "family") or (f"{family}/{item.part}" if item.part else family),
        grader=grader,
        metadata=item.metadata,
    )


def _family_of(row: Row, location: Location) -> str:
    """The source of a row of no benchmark: what it says itself, or its file's name."""
    return called(row, "data_source") or stem_of(location.path)


def _check_known(find: Callable[[str], object], *names: str) -> None:
    """Raises BadRow for a name that `find` does not know."""
    for name in names:
        try:
            find(name)
        except UserError as error:
            raise BadRow(str(error)) from error


def _of_cell(answer: str) -> tuple[str, ...]:
    """The accepted answer in a cell; of `1.2E+11`, as spreadsheets show large numbers, the number, too.

    Raises BadRow for a list of texts that a table has as one text (pandas writes `['7', 'seven']`, whose parts may be
    the accepted answers), and for what spreadsheets write where a formula failed, or rounded a number.
    """
    if _ERROR_OF_A_CELL.fullmatch(answer):
        raise BadRow(f"`answer` is {brief(answer)}, which a spreadsheet writes where a formula failed")
    if _LIST_OF_TEXTS.match(answer):
        raise BadRow(
            f"`answer` is the text {brief(answer)}, which looks like a list of accepted answers: a table has none, "
            "so write the tasks as .jsonl (pandas: to_json(orient='records', lines=True))"
        )
    if not (shown := SHOWN_BY_SPREADSHEETS.fullmatch(answer)):
        return (answer,)
    if len(shown["decimals"] or "") == DECIMALS_OF_ROUNDED:
        raise BadRow(
            f"`answer` is {brief(answer)}, a number rounded by a spreadsheet: give the column a format with all digits "
            "and save it again"
        )
    return f"{Decimal(answer):f}", answer


def _check_answers(answers: Sequence[str], grader: str) -> None:
    """Raises BadRow for answers that the grader cannot compare with any answer."""
    if grader == TESTS:
        if len(answers) > 1:
            raise BadRow("more than one `answer`: a program's tests are one JSON text")
        checked(answers[0])
    if grader == MATHS and not all(map(comparable, answers)):
        raise BadRow(f"an `answer` of more than {MAX_CHARS} characters or {MAX_BRACKETS} brackets equals nothing")


def _published(row: Row, location: Location, asked: _Asked, benchmark: Benchmark | None) -> Task | None:
    """The task of a row of the published training files, whose question and answer are extracted; None if the benchmark
    leaves the row out."""
    try:
        content = "\n".join(message["content"] for message in row["prompt"])
        truth = row["reward_model"]["ground_truth"]
        index = called(row.get("extra_info") or {}, "index") or location.number - 1
    except (KeyError, TypeError, AttributeError) as error:
        raise BadRow(
            f"no `prompt` with messages, or no `reward_model.ground_truth`: `prompt` is {brief(row.get('prompt'))}, "
            f"`reward_model` {brief(row['reward_model'])}"
        ) from error
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


def _target(truth: object) -> object:
    """The answer, unwrapped from {"target": [...], "question": ...} if a file has this form, as object or JSON text."""
    if isinstance(truth, str) and truth.lstrip().startswith("{"):
        try:
            wrapped = json.loads(truth)
        except (ValueError, RecursionError):
            return truth  # LaTeX may begin with a brace
    else:
        wrapped = truth
    return wrapped["target"] if isinstance(wrapped, dict) and "target" in wrapped else truth


def tools_in(instructions: str) -> set[str]:
    """The names of tools in the instructions of a prompt."""
    tools = {tag.name for profile in PROFILES.values() for tag in profile.tools}
    return {tool for tool in tools if re.search(rf"[<'\"`]{tool}\b", instructions)}


def _profile_of(instructions: str, *, programs: bool) -> str | None:
    """The profile with the fewest tools that has every tool that the instructions in a prompt name."""
    spoken_of = tools_in(instructions)
    if not spoken_of:
        return None
    if spoken_of == {"code"}:
        return "code" if programs else "math"
    able = [profile for profile in PROFILES.values() if spoken_of <= {tag.name for tag in profile.tools}]
    return min(able, key=lambda profile: len(profile.tools)).name if able else None


def row_of(task: Task) -> Json:
    """A row that `load` reads as the same task."""
    return {
        "id": task.id,
        "question": task.question,
        "answer": list(task.answers),
        "profile": task.profile,
        "family": task.family,
        "grader": task.grader,
        **({"metadata": task.metadata} if task.metadata else {}),
    }
