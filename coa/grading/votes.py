"""The votes of several answers to one question: answers that its grader holds equal are one vote."""

from collections.abc import Iterable, Sequence

from coa.grading.equivalence import comparable, comparer
from coa.grading.latex import expression_of, words_of
from coa.grading.maths import MATHS
from coa.grading.normalise import normalise


def vote_of(answer: str, grader: str) -> str:
    """The answer as a vote, spelt in one way: equal texts are one vote; empty without an answer. Formulas are not
    evaluated, so that 1/2 and 0.5 differ."""
    if grader != MATHS or not comparable(answer):
        return normalise(answer)
    result = expression_of(answer)
    return words_of(result) or result


def votes_of(answers: Sequence[str], grader: str) -> list[str]:
    """The vote of each answer: those that the grader holds equal have the vote of the first of them. Formulas are
    evaluated, in the process that grades them. Raises InfrastructureError if that fails; blocks."""
    spelt = [vote_of(answer, grader) for answer in answers]
    if grader != MATHS:
        return spelt
    firsts: dict[str, str] = {}
    for vote in spelt:
        if vote not in firsts:
            firsts[vote] = _first_equal(vote, dict.fromkeys(firsts.values()))
    return [firsts[vote] for vote in spelt]


def _first_equal(vote: str, others: Iterable[str]) -> str:
    return next((other for other in others if comparer().equal(vote, (other,))), vote)
