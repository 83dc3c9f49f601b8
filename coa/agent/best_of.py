"""Chooses one of several attempts at one answer, without knowing which is right: best-of-n (arXiv 2508.13167, section
5.3). A selector is a pure function of the attempts; one that asks a language model is in `coa.grading.chooser`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

MAJORITY, DOUBLE_CHECK = "majority", "double_check"


@dataclass(frozen=True, slots=True)
class Candidate:
    """One attempt, as selectors see it."""

    answer: str
    """Normalized answer: equal answers are the same text; empty without an answer."""
    score: int | None = None
    """Score from 1 to 4 of the attempt's own last check of its answer; None without a check."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which attempt was chosen."""

    index: int
    tokens: int = 0
    """Tokens used for choosing, not counting those of the attempts."""


def majority(candidates: Sequence[Candidate]) -> int:
    """The first attempt with the most frequent answer; of equally frequent answers, the answer that came first.
    Attempts without an answer have no vote. Also called self-consistency (arXiv 2203.11171)."""
    answers = [candidate.answer for candidate in candidates]
    votes = Counter(filter(None, answers))
    return answers.index(votes.most_common(1)[0][0]) if votes else 0


def double_check(candidates: Sequence[Candidate]) -> int:
    """The first attempt whose own last check of the answer gave the highest score. Answers without a check rank below
    all scores, and attempts without an answer below those."""

    def worth(candidate: Candidate) -> int:
        return (candidate.score or 0) if candidate.answer else -1

    worths = list(map(worth, candidates))
    return worths.index(max(worths))


SELECTORS = {MAJORITY: majority, DOUBLE_CHECK: double_check}
