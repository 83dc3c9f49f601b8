"""Graders that compare short answers as words: exact match and token F1, the usual metrics of question answering.

Published benchmarks use the published metric, in which -5 equals 5. For other tasks, a number's sign and decimal point
count, and so does each part of an answer."""

import re
from collections import Counter
from collections.abc import Callable

from coa.grading.normalise import normalise, normalise_published
from coa.tools.base import UseTool
from coa.types import Task

_MARK = re.compile(r"(?<![^\W\d_])\|(?=[^\s|])[^|]*(?<=\S)\|(?!\w)|[|()\[\]{}]")


def parts_of(answer: str) -> list[str]:
    """The answers that `|` separates. Within brackets, as in P(A|B), and around an absolute value it separates none."""
    depth, begin, parts = 0, 0, []
    for mark in _MARK.finditer(answer):
        depth += (mark[0] in "([{") - (mark[0] in ")]}")
        if mark[0] == "|" and depth <= 0:
            parts.append(answer[begin : mark.start()])
            begin = mark.end()
    return [part.strip() for part in (*parts, answer[begin:]) if part.strip()]


def published_match(answer: str, accepted: tuple[str, ...]) -> bool:
    """Whether the answer equals some accepted one after `normalise_published`."""
    return bool(answer.strip()) and normalise_published(answer) in map(normalise_published, accepted)


def exact_match(answer: str, accepted: tuple[str, ...]) -> bool:
    """Whether every `|`-separated part of the answer equals some accepted answer after `normalise`. An accepted answer
    of several parts needs all of them, in any order."""
    parts = set(map(normalise, parts_of(answer)))
    return bool(parts) and (parts <= set(map(normalise, accepted)) or any(parts == _all_of(one) for one in accepted))


def _all_of(accepted: str) -> set[str]:
    return set(map(normalise, parts_of(accepted)))


def token_f1(answer: str, accepted: tuple[str, ...], form: Callable[[str], str] = normalise) -> float:
    """The best harmonic mean of precision and recall of words, each counted as often as it occurs.

    token_f1("in the year 1912", ("1912",)) == 0.5
    """
    words = Counter(form(answer).split())
    return max((_f1(words, Counter(form(gold).split())) for gold in accepted), default=0.0)


def _f1(words: Counter[str], gold: Counter[str]) -> float:
    shared = (words & gold).total()
    return 2 * shared / (words.total() + gold.total()) if shared else 0.0


async def grade_exact(answer: str, task: Task, use_tool: UseTool) -> float:
    return float(exact_match(answer, task.answers))


async def grade_first(answer: str, task: Task, use_tool: UseTool) -> float:
    """The published metric of open questions: exact match of the first `|`-separated part, normalized as in SQuAD."""
    return float(published_match("".join(parts_of(answer)[:1]), task.answers))


async def grade_first_f1(answer: str, task: Task, use_tool: UseTool) -> float:
    """The published F1 of the first `|`-separated part, normalized as in SQuAD."""
    return token_f1("".join(parts_of(answer)[:1]), task.answers, normalise_published)


async def grade_f1(answer: str, task: Task, use_tool: UseTool) -> float:
    return token_f1(answer, task.answers)
