"""Reads rows of mathematics benchmarks: a problem and its answer, in LaTeX or as a number."""

import re

from coa.grading.latex import last_box
from coa.tasks.published.item import BadRow, Item, Row, answers, called, missing, text

_WHOLE = re.compile(r"(?<!\d)(-?\d++)\.0+")


def problem(row: Row) -> Item:
    """Reads {"problem" or "question": .., "answer": "204", 27.0 or "27.0", "id": ..}; 27.0 is the integer 27.

    If there is no `answer`, the answer is the last `\\boxed{}` of the `solution`.
    """
    known = row | {"answer": _boxed(row)} if missing(row.get("answer")) else row
    return Item(
        question=text(row, "question", "problem"),
        answers=tuple(_WHOLE.sub(r"\1", gold) if _WHOLE.fullmatch(gold) else gold for gold in answers(known, "answer")),
        id=called(row, "unique_id", "id"),
    )


def olympiad(row: Row) -> Item | None:
    """Reads {"question": .., "final_answer": ["$2$"], "id": ..}, open-ended problems without images.

    An answer keeps its dollar signs. Several answers are joined to one: `1, 2`.
    """
    if any(row.get(f"image_{number}") is not None for number in range(1, 6)):
        return None
    golds = answers(row, "answer", "final_answer")
    return Item(question=text(row, "question"), answers=(", ".join(golds),), id=called(row, "id"))


def _boxed(row: Row) -> str:
    result = last_box(text(row, "answer", "solution"))
    if result is None:
        raise BadRow("no `answer`, and no \\boxed{} in `solution`")
    return result
