"""Which tasks the report shows."""

from typing import Any

from jobs.run.examples import telling


def rows(**correct: bool) -> dict[str, dict[str, Any]]:
    """By task; the first letter is the family."""
    return {name: {"family": name[0], "correct": is_correct} for name, is_correct in correct.items()}


def test_a_task_that_turned_right_is_shown_and_else_the_first_of_its_family() -> None:
    before = rows(a1=False, a2=True, a3=False, a4=False, b1=True, b2=False, c1=True, c2=False)
    after = rows(a1=False, a2=True, a3=True, a4=True, b1=True, b2=False, c1=False, c2=True)
    assert telling(before, after) == ["a3", "b1", "c2"]
