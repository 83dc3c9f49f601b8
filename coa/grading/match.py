"""Graders that compare short answers as words: exact match and token F1, the usual metrics of question answering."""

from collections import Counter

from coa.grading.normalise import normalise
from coa.tools.base import UseTool
from coa.types import Task


def exact_match(answer: str, accepted: tuple[str, ...]) -> bool:
    """Whether every `|`-separated part of the answer equals some accepted answer after `normalise`."""
    parts = [normalise(part) for part in answer.split("|") if part.strip()]
    golds = {normalise(gold) for gold in accepted}
    return bool(parts) and all(part in golds for part in parts)


def token_f1(answer: str, accepted: tuple[str, ...]) -> float:
    """The best harmonic mean of precision and recall of words, each counted as often as it occurs.

    token_f1("in the year 1912", ("1912",)) == 0.5
    """
    words = Counter(normalise(answer).split())
    return max((_f1(words, Counter(normalise(gold).split())) for gold in accepted), default=0.0)


def _f1(words: Counter[str], gold: Counter[str]) -> float:
    shared = (words & gold).total()
    return 2 * shared / (words.total() + gold.total()) if shared else 0.0


async def grade_exact(answer: str, task: Task, use_tool: UseTool) -> float:
    return float(exact_match(answer, task.answers))


async def grade_first(answer: str, task: Task, use_tool: UseTool) -> float:
    """Exact match of the first `|`-separated part alone: how the published evaluation of open questions compares."""
    first = next((part for part in answer.split("|") if part.strip()), "")
    return float(exact_match(first, task.answers))


async def grade_f1(answer: str, task: Task, use_tool: UseTool) -> float:
    return token_f1(answer, task.answers)
