"""Finds the task that a run worked on: by an id, or by the question in the run's first messages."""

from collections.abc import Iterable, Sequence

from coa.types import Task


class Tasks:
    """Tasks of a file, by id and by question."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._by_id = {task.id: task for task in tasks}
        self._by_question: dict[str, Task] = {}
        for task in self._by_id.values():
            self._by_question.setdefault(_plain(task.question), task)
        self._longest_first = sorted(self._by_question, key=len, reverse=True)

    def find(self, ids: Sequence[str], text: str) -> Task | None:
        """The task with the first known id; if none is known, the task with the longest question that is in the
        text."""
        for name in ids:
            if name in self._by_id:
                return self._by_id[name]
        # Usually the question is the whole text or a paragraph of it; searching for every question is slow.
        for part in (text, *text.split("\n\n"), *text.split("\n")):
            bare = part.split(":", 1)[1] if ":" in part else part  # Question: WHAT
            if found := self._by_question.get(_plain(part)) or self._by_question.get(_plain(bare)):
                return found
        plain = _plain(text)
        return next((self._by_question[one] for one in self._longest_first if one and one in plain), None)


def _plain(text: str) -> str:
    return " ".join(text.split())
