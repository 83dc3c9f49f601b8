"""Which of several episodes an answer is taken from."""

from coa.serving.chain import Closed
from coa.serving.events import Event, Finished, ServedUsage
from coa.serving.selection import double_check, majority, selected
from coa.types import Status


def course(answer: str, *scores: str) -> list[Event]:
    checks = [Closed("double_check", score, 3) for score in scores]
    status = Status.ANSWERED if answer else Status.TRUNCATED
    return [*checks, Finished(status=status, answer=answer, usage=ServedUsage(output_tokens=5, samples=1))]


def test_the_answer_that_most_give_is_taken_however_it_is_written() -> None:
    courses = [course("Oslo"), course("the Berg ."), course(""), course(""), course(""), course("berg")]
    assert majority(courses) == 1


def test_of_equally_frequent_answers_the_first_is_taken_and_without_any_the_first_episode() -> None:
    assert majority([course("a1"), course("b1"), course("b1"), course("a1")]) == 0
    assert majority([course(""), course("")]) == 0


def test_the_last_check_of_an_answer_decides() -> None:
    assert double_check([course("a", "4 good", "2 doubtful"), course("b", "3 fine"), course("c")]) == 1
    assert double_check([course(""), course("b")]) == 1
    assert double_check([course("a", "no score"), course("b", "1 wrong")]) == 1


def test_the_usage_is_that_of_all() -> None:
    *_, end = selected([course("a"), course("b"), course("b")], "majority")
    assert isinstance(end, Finished)
    assert end.answer == "b"
    assert end.usage == ServedUsage(output_tokens=15, samples=3)
