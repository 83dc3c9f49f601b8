"""Which of several episodes an answer is taken from."""

from coa.serving.chain import Closed
from coa.serving.events import Event, Finished, ServedUsage
from coa.serving.selection import selected
from coa.types import Status


def course(answer: str, *scores: str) -> list[Event]:
    checks = [Closed("double_check", score, 3) for score in scores]
    status = Status.ANSWERED if answer else Status.TRUNCATED
    return [*checks, Finished(status=status, answer=answer, usage=ServedUsage(output_tokens=5, samples=1))]


def taken(courses: list[list[Event]], how: str, profile: str = "mhqa") -> int:
    """Which of the courses is selected."""
    *_, end = selected(courses, how, profile)
    assert isinstance(end, Finished)
    return [course[-1].answer for course in courses if isinstance(course[-1], Finished)].index(end.answer)


def test_answers_are_equal_as_graders_compare_words() -> None:
    courses = [course("Oslo"), course("the Berg ."), course(""), course(""), course(""), course("berg")]
    assert taken(courses, "majority") == 1


def test_of_formulas_another_spelling_is_the_same_answer_and_another_formula_is_not() -> None:
    courses = [course("12"), course("1/2"), course(r"so it is \boxed{\frac{1}{2}}"), course(r"\frac12")]
    assert taken(courses, "majority", "math") == 1
    assert taken(courses, "majority") == 0, "as words"


def test_the_last_check_of_an_answer_decides() -> None:
    assert taken([course("a1", "4 good", "2 doubtful"), course("b1", "3 fine"), course("c1")], "double_check") == 1
    assert taken([course(""), course("b1")], "double_check") == 1
    assert taken([course("a1", "no score"), course("b1", "1 wrong")], "double_check") == 1


def test_the_usage_is_that_of_all() -> None:
    *_, end = selected([course("a"), course("b"), course("b")], "majority", "mhqa")
    assert isinstance(end, Finished)
    assert end.answer == "b"
    assert end.usage == ServedUsage(output_tokens=15, samples=3)
