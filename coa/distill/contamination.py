"""Finds tasks of evaluation sets, so that no model is trained on what it is measured by.

There are two rules. Exact: the normalised questions are equal. N-gram: they share n words in a row (n = 13, after
GPT-3's rule, arXiv 2005.14165, appendix C). A question of fewer words is a single gram; from 8 words on (GPT-3's lower
bound) it is found inside longer questions too, while "What is it?" is found only as a whole question.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coa.distill.words import Hashes, grams, held, numbers_of, ordered, words_of
from coa.grading.normalise import normalise

EXACT = "in an evaluation set: exact"
NGRAM = "in an evaluation set: n-gram"
REASONS = (EXACT, NGRAM)
SHORTEST = 8
"""Words of the shortest question that is looked for inside others."""
COMMON = 10
"""Most evaluation questions that may share a gram. One that more share is a set phrase ("where m and n are relatively
prime positive integers ...") and is ignored, as GPT-3 ignored grams that were common in its training texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """The questions of evaluation sets: `Contamination.of(questions, 13).reason("Who is the mayor of Arden ?")`. Its
    size is that of the evaluation sets."""

    n: int
    questions: frozenset[str]
    """Normalised."""
    grams: Mapping[int, Hashes]
    """Sorted grams, by their number of words."""

    @classmethod
    def of(cls, questions: Iterable[str], n: int = 13) -> "Contamination":
        """Built from the questions of all evaluation sets; repetitions make no difference."""
        if n < 1:
            raise ValueError(f"an n-gram of {n} words")
        exact: set[str] = set()
        found: defaultdict[int, list[Hashes]] = defaultdict(list)
        for question in questions:
            if (normal := normalise(question)) in exact:
                continue
            exact.add(normal)
            numbers = numbers_of(words_of(question))
            if len(numbers):
                found[min(n, len(numbers))].append(grams(numbers, n))
        kept = {size: ordered(lists, at_most=COMMON) for size, lists in found.items()}
        return cls(n=n, questions=frozenset(exact), grams=kept)

    def reason(self, question: str) -> str | None:
        """EXACT, NGRAM, or None for a question of no evaluation set."""
        if not self.questions:
            return None
        if normalise(question) in self.questions:
            return EXACT
        numbers = numbers_of(words_of(question))
        shared = any(
            held(grams(numbers, size), known)
            for size, known in self.grams.items()
            if size == len(numbers) or (size < len(numbers) and size >= min(SHORTEST, self.n))
        )
        return NGRAM if shared else None
