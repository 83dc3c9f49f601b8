"""Programming tasks whose tests are all samples in their question: a table of these passes for a program.

Results on such tasks are named `sample tests only`, and RL leaves them out unless the recipe says otherwise.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache

from coa.grading.cases import Case, Feed, Script, any_digits, read_tests
from coa.grading.programs import TESTS
from coa.json_object import JsonView
from coa.tasks.published.programs import SAMPLE_TESTS
from coa.types import Task

SAMPLE_TESTS_ONLY = "sample tests only"
"""The name of results on such tasks."""
COUNT = "sample_tests_only"
"""The key of their number in a result."""
GAP = 100
"""Maximum number of characters, in a question, between the parts of a sample."""
_TOKEN = re.compile(r"\w+|[^\w\s]")
_END = "\0"


def with_sample_tests_only(tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Those of the tasks whose tests are all in their question."""
    return tuple(task for task in tasks if has_sample_tests_only(task))


def has_sample_tests_only(task: Task) -> bool:
    """Whether the task's benchmark says so, or each test's input and output stand in the question, one after the
    other."""
    if task.grader != TESTS:
        return False
    return task.family.endswith(f"/{SAMPLE_TESTS}") or _in_question(task.question, task.answers[0])


def result_name(name: str, result: JsonView) -> str:
    """The name of a result of an evaluation, with the number of such tasks in it, if there are any."""
    if (samples := result.get(COUNT, 0)) == 0:
        return name
    some = "" if samples == result["n"] else f"{samples} tasks: "
    return f"{name} ({some}{SAMPLE_TESTS_ONLY})"


@lru_cache(maxsize=4096)
def _in_question(question: str, tests: str) -> bool:
    text = _tokens(question)
    try:
        cases = read_tests(tests).cases
    except ValueError:  # whoever grades the task reports it
        return False
    return all(any(_stand_in(parts, text) for parts in _samples(case)) for case in cases)


def _samples(case: Case) -> Iterator[list[str]]:
    """The parts of a sample in the order in which a question shows them, for each result that is accepted."""
    if isinstance(case, Feed):
        yield [case.input, case.output]
        return
    if isinstance(case, Script):
        yield [case.text]
        return
    with any_digits():
        arguments = [json.dumps(value, ensure_ascii=False) for value in (*case.arguments, *case.keywords.values())]
        results = [json.dumps(value, ensure_ascii=False) for value in case.accepted]
    yield from ([*arguments, result] for result in results)


def _stand_in(parts: Sequence[str], text: str) -> bool:
    """Whether the parts stand in a text of tokens, each shortly after the one before it."""
    ends: list[int] | None = None
    for part in filter(None, map(_tokens, parts)):
        starts = (start for start in _starts(part, text) if ends is None or _follows(start, ends))
        ends = [start + len(part) - len(_END) for start in starts]
        if not ends:
            return False
    return True


def _follows(start: int, ends: Sequence[int]) -> bool:
    """Whether the last of the ends (ascending) before a start is near enough."""
    before = bisect_right(ends, start)
    return before > 0 and start - ends[before - 1] <= GAP


def _starts(part: str, text: str) -> Iterator[int]:
    start = text.find(part)
    while start >= 0:
        yield start
        start = text.find(part, start + 1)


def _tokens(text: str) -> str:
    """The words, numbers and signs of a text, each between two marks; empty if there are none."""
    found = _END.join(_TOKEN.findall(text))
    return f"{_END}{found}{_END}" if found else ""
