"""Which tasks ask the same question."""

import re
from collections.abc import Sequence
from unicodedata import normalize

from coa.types import Task

_QUOTES = "\"'\u201c\u201d\u2018\u2019"
_STOPS = "?.,;:"
_ARTICLES = frozenset({"a", "an", "the"})
_TOKEN = re.compile(r"\w+|[^\w\s]")


def question_key(question: str) -> str:
    """Returns a key that equal questions share, however they are written: case, blanks, articles, quotes and the stops
    at the end of a word make no difference. `What is the sum 3+4?` equals `what is sum 3 + 4 ?`; `What is 3 * 4 ?` and
    `What is 3 + 4 ?` differ."""
    words = (word.rstrip(_STOPS + _QUOTES).lstrip(_QUOTES) for word in normalize("NFKC", question).casefold().split())
    return " ".join(token for word in words if word not in _ARTICLES for token in _TOKEN.findall(word)) or question


def repeats(tasks: Sequence[Task]) -> int:
    """The number of tasks that ask the question of an earlier one."""
    return len(tasks) - len({question_key(task.question) for task in tasks})
