"""Which of several attempts is taken."""

from coa.agent.best_of import Candidate, double_check, majority


def answers(*given: str) -> list[Candidate]:
    return [Candidate(answer) for answer in given]


def checked(*given: tuple[str, int | None]) -> list[Candidate]:
    return [Candidate(answer, score) for answer, score in given]


def test_the_answer_that_most_give_is_taken_and_silence_has_no_vote() -> None:
    assert majority(answers("oslo", "berg", "", "", "", "berg")) == 1


def test_of_equally_frequent_answers_the_first_is_taken_and_without_any_the_first_attempt() -> None:
    assert majority(answers("a", "b", "b", "a")) == 0
    assert majority(answers("", "")) == 0


def test_the_best_checked_answer_is_taken_then_an_unchecked_one_then_none() -> None:
    assert double_check(checked(("a", 2), ("b", 3), ("c", None), ("d", 3))) == 1
    assert double_check(checked(("", 4), ("b", None), ("c", 1))) == 2
    assert double_check(checked(("", 4), ("b", None))) == 1
    assert double_check(checked(("", None), ("", 4))) == 0
