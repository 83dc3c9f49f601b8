"""Remarks on tasks that a user should read before anything starts."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from coa.tasks.questions import repeats
from coa.tasks.samples import SAMPLE_TESTS_ONLY, with_sample_tests_only
from coa.types import Task

SHOWN_BY_SPREADSHEETS = re.compile(r"-?[1-9](?:\.(?P<decimals>\d+))?E\+\d\d")
"""A large number as spreadsheets show it, and save it in a table: `1.2E+11`."""
NO_VALUE = frozenset({"NULL", "Null", "null", "None", "N/A", "n/a", "NA"})
"""Answers by which other programs may mean that there is none."""
MANY = 3
"""Number of such answers that is worth a remark."""


def remarks_on(name: str, tasks: Sequence[Task]) -> Iterator[str]:
    """Sentences on questions that repeat, on answers that may be none or rounded, and on programs whose tests are all
    samples in the question; none if there is nothing to say."""
    if again := repeats(tasks):
        yield f"{name}: {again} of {len(tasks)} rows repeat the question of an earlier row"
    words = Counter(answer for task in tasks for answer in task.answers if answer in NO_VALUE)
    if words.total() >= MANY:
        yield (
            f"{name}: {words.total()} answers of {len(tasks)} tasks are {' or '.join(words)}: leave these rows out if "
            "that means that there is no answer"
        )
    if shown := [(a, task.id) for task in tasks for a in task.answers if SHOWN_BY_SPREADSHEETS.fullmatch(a)]:
        yield (
            f"{name}: answers of {len(shown)} of {len(tasks)} tasks are as a spreadsheet shows large numbers, which it "
            f"may have rounded: {', '.join(f'{answer} of {task}' for answer, task in shown[:MANY])}"
        )
    if samples := len(with_sample_tests_only(tasks)):
        yield (
            f"{name}: {samples} of {len(tasks)} tasks have {SAMPLE_TESTS_ONLY}: a table of the samples in the question "
            "passes for a program"
        )
