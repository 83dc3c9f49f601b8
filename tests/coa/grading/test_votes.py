"""Which answers to one question are one vote."""

import pytest

from coa.grading.votes import vote_of, votes_of


def test_formulas_that_the_grader_holds_equal_are_one_vote() -> None:
    answers = [
        "12",
        "1/2",
        r"So it is \boxed{\frac{1}{2}}.",
        "0.5",
        r"\frac{1}{\sqrt{2}}",
        "x = 0.50",
        r"\sqrt{2}/2",
        "",
    ]
    half, root = vote_of(answers[1], "math"), vote_of(answers[4], "math")
    assert votes_of(answers, "math") == ["12", half, half, half, root, half, root, ""]


@pytest.mark.parametrize("grader", ["exact", "judge", "tests"])
def test_words_are_one_vote_if_they_are_the_same_words(grader: str) -> None:
    assert votes_of(["The Berg", "berg.", "Oslo", ""], grader) == ["berg", "berg", "oslo", ""]


def test_what_is_no_formula_is_a_vote_of_its_own_words() -> None:
    assert votes_of([r"\text{East}", "east", "(" * 200, "(" * 200, "1, 2"], "math")[:2] == ["east", "east"]
    assert len(set(votes_of(["(" * 200, ")" * 200], "math"))) == 2
