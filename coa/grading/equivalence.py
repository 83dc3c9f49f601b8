"""Compares mathematical answers by Math-Verify, in a child process that can be ended.

    comparer().equal(r"\\boxed{x = \\frac12}", ("0.5",))

An answer such as 9^(9^9) keeps a comparison busy forever, inside one call that can't be interrupted, so a child process
(`coa.processes.LimitedChild`) compares. If the child uses up its CPU time or its memory, or crashes, the answer is not
equal.
"""

import json
from functools import cache

from coa.grading.latex import expression_of, stated_text
from coa.grading.mathematics.choices import choice_of, letter_of, letters_of
from coa.grading.mathematics.equal import Equal, same
from coa.grading.mathematics.formulas import comparisons, published_comparison
from coa.processes import LimitedChild, serve_limited

LIMIT_S = 5
"""Seconds of CPU time for one comparison."""
MEMORY_BYTES = 2 << 30
MAX_CHARS = 2000
MAX_BRACKETS = 100
"""Maximum opening brackets of an answer or a gold; a text with more, or with too many characters, equals nothing."""


class Comparer:
    """Compares in a child process, with one gold at a time, so that a gold that ends the child does not affect the
    others."""

    def __init__(self, limit_s: int = LIMIT_S) -> None:
        self.process = LimitedChild(__name__, "compares mathematical answers", limit_s)

    def equal(self, answer: str, accepted: tuple[str, ...], *, as_published: bool = False) -> bool:
        """Whether the answer equals some accepted one; raises InfrastructureError if the child can't be asked.

        as_published: whether to compare by plain Math-Verify alone.
        """
        golds = filter(comparable, accepted)
        return comparable(answer) and any(self._equals(answer, gold, as_published) for gold in golds)

    def _equals(self, answer: str, gold: str, as_published: bool) -> bool:
        return self.process.ask(json.dumps([answer, gold, as_published]).encode()) == b"true"


def comparable(text: str) -> bool:
    return bool(text.strip()) and len(text) <= MAX_CHARS and sum(map(text.count, "({[")) <= MAX_BRACKETS


@cache
def comparer() -> Comparer:
    """This process's comparer."""
    return Comparer()


def _serve() -> None:
    equal, published = equality(), published_comparison()

    def answer(request: bytes) -> bytes:
        text, gold, as_published = json.loads(request)
        return json.dumps((published if as_published else equal)(text, gold)).encode()

    serve_limited(answer, MEMORY_BYTES)


def equality() -> Equal:
    """A function that compares an answer and a gold; importing what it needs takes seconds."""
    formulas, equations = comparisons()

    def equal(answer: str, gold: str) -> bool:
        stated, letter = stated_text(answer), letter_of(gold)
        if stated and stated == stated_text(gold):
            return True
        if letter is not None and (choice := choice_of(stated)) is not None:
            return choice == letter
        if (letters := letters_of(gold)) and letters_of(stated) == letters:
            return True
        return same(expression_of(answer), expression_of(gold), formulas, equations)

    return equal


if __name__ == "__main__":
    _serve()
