"""Compares mathematical answers by Math-Verify, in a child process that can be ended.

    comparer().equal(r"\\boxed{x = \\frac12}", ("0.5",))

An answer such as 9^(9^9) keeps a comparison busy forever, inside one call that can't be interrupted, so a child process
(`coa.processes`) compares. If the child uses up its CPU time or its memory, or crashes, the answer is not equal. Only
if it gets no CPU time, or is killed from outside before it has used much, that is an InfrastructureError.
"""

import json
import math
import resource
import signal
import sys
import threading
from functools import cache

from coa.errors import InfrastructureError
from coa.grading.latex import expression_of, stated_text
from coa.grading.mathematics.choices import choice_of, letter_of, letters_of
from coa.grading.mathematics.equal import Equal, same
from coa.grading.mathematics.formulas import comparisons, published_comparison
from coa.processes import Child, ChildGone, serve

LIMIT_S = 5
"""Seconds of CPU time for one comparison."""
PATIENCE_S = 60.0
"""Wall-clock seconds for one comparison, and for a child's imports, on a busy machine."""
BUSY_S = 0.5
"""Seconds of CPU time from which on a comparison itself is to blame for a child that gives no answer; most take a
few milliseconds."""
MEMORY_BYTES = 2 << 30
MAX_CHARS = 2000
MAX_BRACKETS = 100
"""Maximum opening brackets of an answer or a gold; a text with more, or with too many characters, equals nothing."""
_SILENT = "the process that compares mathematical answers does not answer"


class Comparer:
    """Compares in a child process, which is started at the first comparison and again after it has died."""

    def __init__(self, limit_s: int = LIMIT_S) -> None:
        self._limit_s = limit_s
        self._child: Child | None = None
        self._one_at_a_time = threading.Lock()

    def equal(self, answer: str, accepted: tuple[str, ...], *, as_published: bool = False) -> bool:
        """Whether the answer equals some accepted one; raises InfrastructureError if the child can't be asked.

        as_published: whether to compare by plain Math-Verify alone.
        """
        golds = filter(comparable, accepted)
        return comparable(answer) and any(self._equals(answer, gold, as_published) for gold in golds)

    def close(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None

    def _equals(self, answer: str, gold: str, as_published: bool) -> bool:
        """Compares with one gold at a time, so that a gold that ends the child does not affect the others."""
        request = json.dumps([answer, gold, as_published]).encode()
        with self._one_at_a_time:
            child = self._child = self._child or self._start()
            try:
                return child.ask(request, PATIENCE_S) == b"true"
            except ChildGone as gone:
                self._child = None
                if gone.status in (None, -signal.SIGKILL) and gone.cpu_s < BUSY_S:
                    raise InfrastructureError(_SILENT) from gone
                return False  # the comparison itself ended the child, or kept it busy

    def _start(self) -> Child:
        child = Child(__name__, str(self._limit_s))
        try:
            child.started(PATIENCE_S)
        except ChildGone as gone:
            raise InfrastructureError("the process that compares mathematical answers does not start") from gone
        return child


def comparable(text: str) -> bool:
    return bool(text.strip()) and len(text) <= MAX_CHARS and sum(map(text.count, "({[")) <= MAX_BRACKETS


@cache
def comparer() -> Comparer:
    """This process's comparer."""
    return Comparer()


def _serve(limit_s: int) -> None:
    equal, published = equality(), published_comparison()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)

    def answer(request: bytes) -> bytes:
        text, gold, as_published = json.loads(request)
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = math.ceil(used.ru_utime + used.ru_stime) + limit_s
        resource.setrlimit(resource.RLIMIT_CPU, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        return json.dumps((published if as_published else equal)(text, gold)).encode()

    serve(answer)


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
    _serve(int(sys.argv[1]))
