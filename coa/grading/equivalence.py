"""Compares mathematical answers by Math-Verify, in a child process that can be ended.

    comparer().equal(r"\\boxed{x = \\frac12}", ("0.5",))

An answer such as 9^(9^9) keeps a comparison busy forever, inside one call that can't be interrupted, so a child process
(`coa.processes`) compares. If the child uses up its CPU time or crashes, the answer is not equal; if it gets no CPU
time, or is killed from outside, that is an InfrastructureError.
"""

import json
import math
import re
import resource
import signal
import sys
import threading
from functools import cache, lru_cache
from typing import Any

from coa.errors import InfrastructureError
from coa.grading.latex import expression_of
from coa.grading.mathematics.equal import EQUALS, Equal, same
from coa.processes import Child, ChildGone, serve

LIMIT_S = 5
"""Seconds of CPU time for one comparison."""
PATIENCE_S = 60.0
"""Wall-clock seconds for one comparison, and for a child's imports, on a busy machine."""
MEMORY_BYTES = 4 << 30
MAX_CHARS = 2000
MAX_BRACKETS = 100
"""Maximum opening brackets of an answer or a gold; a text with more, or with too many characters, equals nothing."""
RELATIVE = 1e-5
"""Maximum relative error of a rounded number."""
_FACTOR = re.compile(r"(?<![\w^.}])(\d+(?:\.\d+)?) ?(?=\()")
"""A number right before a bracket, which Math-Verify adds: it reads `2(5)` as it reads 2 and a half."""
_TIMES = r"\1 \\cdot "
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
        with self._one_at_a_time:
            child = self._child = self._child or self._start()
            try:
                return child.ask(json.dumps([answer, gold, as_published]).encode(), PATIENCE_S) == b"true"
            except ChildGone as gone:
                self._child = None
                if gone.status in (None, -signal.SIGKILL):
                    raise InfrastructureError(_SILENT) from gone
                return False  # the comparison itself ended the child

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
    equal, published = equality(), published_equality()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)

    def answer(request: bytes) -> bytes:
        text, gold, as_published = json.loads(request)
        used = resource.getrusage(resource.RUSAGE_SELF)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(used.ru_utime + used.ru_stime) + limit_s, hard))
        return json.dumps((published if as_published else equal)(text, gold)).encode()

    serve(answer)


def equality() -> Equal:
    """A function that compares an answer and a gold; importing what it needs takes seconds."""
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify
    from sympy import Expr, simplify

    # Units have been removed already, and variables may look like units.
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all")
    config = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=spelling)]

    @lru_cache(maxsize=64)
    def parsed(expression: str) -> list[Any]:
        """Math-Verify's reading of the expression; its own time limits are off (0), the kernel limits the time."""
        return parse(rf"\boxed{{{_FACTOR.sub(_TIMES, expression)}}}", config, parsing_timeout=0)

    def rounded_away(found: Any, right: Any) -> bool:
        """Whether two numbers differ although rounding to six places makes them equal, as for 0.0000672."""
        if not all(isinstance(number, Expr) and number.is_number for number in (found, right)):
            return False
        difference, size = (abs(number.doit().evalf()) for number in (right - found, right))
        return bool(max(RELATIVE * size, 1e-12) < difference <= 1e-6)

    def formulas(answer: str, gold: str) -> bool:
        found, right = parsed(answer), parsed(gold)
        equal = verify(right, found, timeout_seconds=0, allow_set_relation_comp=True)
        return equal and not rounded_away(found[0], right[0])

    def equations(answer: str, gold: str) -> bool:
        """Whether the differences of the two sides are proportional."""
        sides = [parsed(side)[:1] for equation in (answer, gold) for side in EQUALS.split(equation)]
        if len(sides) != 4 or not all(side and isinstance(side[0], Expr) for side in sides):
            return False
        left, right, gold_left, gold_right = (side[0].doit() for side in sides)
        ratio = simplify((left - right) / (gold_left - gold_right)) if gold_left != gold_right else None
        return ratio is not None and bool(ratio.is_number and ratio.is_finite and ratio.is_nonzero)

    def equal(answer: str, gold: str) -> bool:
        return same(expression_of(answer), expression_of(gold), formulas, equations)

    return equal


def published_equality() -> Equal:
    """Plain Math-Verify, as published evaluations compare: the gold in a box, the answer unchanged."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig()

    def equal(answer: str, gold: str) -> bool:
        right = parse(rf"\boxed{{{gold}}}", [latex], parsing_timeout=0)
        found = parse(answer, [ExprExtractionConfig(), latex], parsing_timeout=0)
        return verify(right, found, timeout_seconds=0)

    return equal


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
