"""The published AFM reinforcement sets, by path, as tasks: rows in verl's layout.

    {"data_source": "hotpotqa", "prompt": [{"role": "user", "content": "INSTRUCTIONS ... Question: QUESTION"}],
     "ability": "qa", "reward_model": {"ground_truth": TRUTH, "style": "rule"}, "extra_info": {"index": 3, ..}}

TRUTH is a text, a list of texts, {"target": one or several, "question": ..}, or the tests of a program; each of them
as such or as its JSON text. `coa.tasks` reads the same layout where it is a benchmark's, and refuses a file with a row
that it can't read; here such rows are told one by one.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coa.benchmarks.item import BadRow, Row
from coa.benchmarks.programs import checked
from coa.benchmarks.source import read_rows as read_file
from coa.data.released import GRADERS, split_prompt
from coa.graders.maths import MATHS
from coa.graders.programs import TESTS
from coa.maths import MAX_BRACKETS, MAX_CHARS, comparable
from coa.profiles import PROFILES
from coa.types import Task

_TESTS = {"stdin", "functional", "inputs", "outputs", "assertions", "test_code"}
"""Keys of tests that `coa.graders.cases` reads."""
_ELSEWHERE = "its tests are in a file of LiveCodeBench's"


def read_released_tasks(path: Path) -> Iterator[tuple[int, Task | str]]:
    """The number of each row of a file, from 1, and its task, or why it makes none; memory does not grow.

    Ids are of the data's source and the row's number: `extra_info.index` repeats across sources, or is missing.
    """
    for number, (_, row) in enumerate(read_file(path), start=1):
        try:
            yield number, to_task(row, number, path.stem)
        except BadRow as error:
            yield number, str(error)


def to_task(row: Row, number: int, stem: str) -> Task:
    """Raises BadRow for a row that makes none."""
    instructions, question = split_prompt(_content(row))
    if not question:
        raise BadRow("no question in `prompt`")
    try:
        truth = _plain(row["reward_model"]["ground_truth"])
    except (KeyError, TypeError) as error:
        raise BadRow("no `reward_model.ground_truth`") from error
    programs = isinstance(truth, dict) and (bool(_TESTS & truth.keys()) or "question_id" in truth)
    profile = _profile_of(instructions, programs=programs)
    grader = GRADERS.get(profile, "exact")
    family = str(row.get("data_source") or stem)
    return Task(
        id=f"{family}-{number}",
        question=question,
        answers=(_tests(truth),) if grader == TESTS else _accepted(truth, grader),
        profile=profile,
        family=family,
        grader=grader,
    )


def _content(row: Row) -> str:
    prompt = row.get("prompt")
    if isinstance(prompt, str):
        return prompt
    try:
        return "\n".join(message["content"] for message in prompt or () if message["role"] == "user")
    except (KeyError, TypeError) as error:
        raise BadRow("no `prompt` with messages") from error


def _plain(truth: Any) -> Any:
    """An object or list where the text is one, as JSON; LaTeX may begin with a brace or bracket, and is a text."""
    if isinstance(truth, str) and truth.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(truth)
        except (ValueError, RecursionError):
            return truth
    # What Parquet has of a struct: each key of any row, with nothing in those of other rows.
    return {key: value for key, value in truth.items() if value is not None} if isinstance(truth, dict) else truth


def _profile_of(instructions: str, *, programs: bool) -> str:
    """The smallest profile with every tool that the instructions name; a program's tests are for the code agent."""
    every = {tool.name for profile in PROFILES.values() for tool in profile.tools}
    named = {tool for tool in every if re.search(rf"[<'\"`]{tool}\b", instructions)}
    if programs or named == {"code"}:
        return "code" if programs else "math"
    able = [one for one in PROFILES.values() if named <= {tool.name for tool in one.tools}]
    if not named or not able:
        raise BadRow("its instructions name no profile's tools")
    return min(able, key=lambda one: len(one.tools)).name


def _tests(truth: Any) -> str:
    if not isinstance(truth, dict) or not _TESTS & truth.keys():
        raise BadRow(_ELSEWHERE if isinstance(truth, dict) and "question_id" in truth else "no tests")
    return checked(json.dumps(truth))


def _accepted(truth: Any, grader: str) -> tuple[str, ...]:
    target = truth.get("target") if isinstance(truth, dict) else truth
    listed = target if isinstance(target, list) else [target]
    accepted = tuple(str(one).strip() for one in listed if type(one) in (str, int, float))
    if not accepted or len(accepted) < len(listed) or not all(accepted):
        raise BadRow("no accepted answers in `reward_model.ground_truth`")
    if grader == MATHS and not all(map(comparable, accepted)):
        raise BadRow(f"an answer of more than {MAX_CHARS} characters or {MAX_BRACKETS} brackets equals nothing")
    return accepted
