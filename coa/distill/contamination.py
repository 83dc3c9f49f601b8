"""Finds tasks of evaluation sets, so that no model is trained on the questions that it is evaluated on.

There are two rules. Exact: the normalised questions are equal. N-gram: they share n consecutive words (n = 13, after
GPT-3's rule, arXiv 2005.14165, appendix C). A question of fewer words is a single gram. If it has at least 8 words
(GPT-3's lower bound), it is also found inside longer questions; a shorter one matches only a whole question.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from coa.distill.words import Hashes, any_in, grams, numbers_of, ordered, words_of
from coa.grading.normalise import normalise

NAMED, OWN = "in an evaluation set", "in the held-out part of its own tasks"
"""The two kinds of evaluation sets: those that a recipe names, and the tasks that a run holds out itself."""
EXACT, NGRAM = f"{NAMED}: exact", f"{NAMED}: n-gram"
OWN_EXACT, OWN_NGRAM = f"{OWN}: exact", f"{OWN}: n-gram"
REASONS = (EXACT, NGRAM, OWN_EXACT, OWN_NGRAM)
SHORTEST = 8
"""Minimum words of a question that is searched for inside other questions."""
COMMON = 10
"""Maximum evaluation questions that may share a gram. A gram that more questions share is a set phrase ("where m and n
are relatively prime positive integers ...") and is ignored, as GPT-3 ignored grams that were common in its training
texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contamination:
    """The questions of evaluation sets: `Contamination.of(questions, 13).reason("Who is the mayor of Arden ?")`. Its
    memory grows with the evaluation sets."""

    n: int
    questions: frozenset[str]
    """Normalised."""
    grams: Mapping[int, Hashes]
    """Sorted grams, by their number of words."""
    own: "Contamination | None" = None
    """The tasks that the run itself holds out, if they are to be reported separately; None otherwise."""

    @classmethod
    def of(cls, questions: Iterable[str], n: int = 13, own: "Contamination | None" = None) -> "Contamination":
        """Built from the questions of all evaluation sets; repetitions make no difference. own: see the field."""
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
        return cls(n=n, questions=frozenset(exact), grams=kept, own=own)

    def reason(self, question: str) -> str | None:
        """One of REASONS, or None if the question is in no evaluation set."""
        if (found := self._reason_for(question)) is not None:
            return found
        own = self.own and self.own.reason(question)
        return {EXACT: OWN_EXACT, NGRAM: OWN_NGRAM}[own] if own else None

    def _reason_for(self, question: str) -> str | None:
        if not self.questions:
            return None
        if normalise(question) in self.questions:
            return EXACT
        numbers = numbers_of(words_of(question))
        shared = any(
            any_in(grams(numbers, size), known)
            for size, known in self.grams.items()
            if size == len(numbers) or (size < len(numbers) and size >= min(SHORTEST, self.n))
        )
        return NGRAM if shared else None
