r"""Compares formulas by computer algebra: Math-Verify's reading of LaTeX, and SymPy.

A formula that can't be read as a whole equals nothing, and so does one that SymPy fails on, or a calculation that was
not done: `2^{10}` is a value of 1024, `\min(27,28)` none of 27. An operation is allowed where the accepted answer has
it, too.
"""

import re
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

from coa.grading.mathematics.equal import EQUALS, Equal
from coa.grading.mathematics.numbers import number_of

RELATIVE = 1e-5
"""Maximum relative error of a rounded number."""
_DIGITS = 60
"""Digits to which constants are computed; the last third of them may differ."""
_FACTOR = re.compile(r"(?<![\w^.}])(\d+(?:\.\d+)?) ?(?=\()")
"""A number right before a bracket, which is a factor: latex2sympy reads `2(5)` as it reads 2 and a half."""
_IMAGINARY = re.compile(r"(?<![A-Za-z\\_])i(?![A-Za-z])|\\(?:Re|Im|arg)(?![A-Za-z])")
_TIMES = r"\1 \\cdot "

_CALCULATION = re.compile(
    r"\\(?P<name>i+nt|oint|sum|prod|lim|limsup|liminf|min|max|sup|inf|gcd|lcm|det|binom|lfloor|lceil|bmod|pmod|mod"
    r"|partial)(?![A-Za-z])|(?P<matrix>\\begin ?\{vmatrix\})|\\frac ?\{ ?(?P<derivative>d)[^{}]*\} ?\{ ?d"
    r"|(?<![A-Za-z\\])(?P<word>min|max|gcd|lcm|floor|ceil|det|sum|lim|mod)(?![A-Za-z])"
    r"|\d ?(?P<chosen>[CP]) ?\d|(?<![A-Za-z])(?P<call>[CP]) ?\( ?\d"
)
_TRIGONOMETRY = re.compile(r"\\?(?<![A-Za-z])(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?(?![A-Za-z])")
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[a-df-hj-zA-Z](?![A-Za-z])")
_COMMAND = re.compile(r"\\[A-Za-z]+")
_INDEX = re.compile(r"[\d)}\]!] ?_|\\(?:pi|infty) ?_")
_NAMED = re.compile(r"\\(?:mathbb|mathrm|mathbf|mathcal|text|operatorname|vec|hat|bar|overline) ?\{[^{}]*\}")
_IRRATIONAL = re.compile(r"\\(?:pi|sqrt|ln|log|exp)|e")

_BRACKETS = re.compile(r"[({\[]([#P])[)}\]]")
_STEPS = (
    (re.compile(r"\\frac(?:\{\d+\}|\d)(?:\{\d+\}|\d)"), "#"),
    (re.compile(r"\d+(?:[.,]\d+)*\.?|\.\d+"), "#"),
    (re.compile(r"(?<![#P)}\]!])[-+]"), ""),
    (re.compile(r"(?<![#P/^!)}])#/#(?![#P/^!])"), "#"),
)
_RAISED = re.compile(r"[#P]\^[#P]|[#P]!")
_ONE_STEP = re.compile(r"[#P](?:(?:[-+*/:]|\\(?:cdot|times|div))?[#P])?|\\frac[#P][#P]")
_PRODUCT = re.compile(r"[#P](?:(?:\*|\\cdot|\\times)[#P])+")


def comparisons() -> tuple[Equal, Equal]:
    """Functions that compare two formulas, and two equations; importing what they need takes seconds."""
    from latex2sympy2_extended import NormalizationConfig
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig, latex2sympy
    from math_verify import verify
    from math_verify.grader import is_relation
    from sympy import Expr, Float, Symbol, nan, nsimplify, oo, simplify, zoo

    # Units have been removed already, and variables may look like units.
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    reading = ConversionConfig(lowercase_symbols=False)

    @lru_cache(maxsize=64)
    def read(expression: str) -> Any:
        text = _FACTOR.sub(_TIMES, expression)
        return latex2sympy(
            text, is_real=not _IMAGINARY.search(expression), normalization_config=spelling, conversion_config=reading
        )

    def same_constant(found: Expr, right: Expr) -> bool:
        found, right = found.doit(), right.doit()
        if any(number.has(nan, zoo, oo, -oo) for number in (found, right)):
            return bool(found == right and not found.has(nan, zoo))
        if found.has(Float) or right.has(Float):
            difference, size = abs((right - found).evalf()), abs(right.evalf())
            return bool(difference <= RELATIVE * size) and bool(found.round(6) == right.round(6))
        if found == right or right == 0 or (found.is_Rational and right.is_Rational):
            return bool(found == right) or (not found.is_Rational and simplify(found - right) == 0)
        difference = abs(found.evalf(_DIGITS) - right.evalf(_DIGITS))
        return bool(difference <= abs(right.evalf(_DIGITS)) * 10 ** (-_DIGITS * 2 // 3))

    def same_expression(found: Expr, right: Expr) -> bool:
        difference = nsimplify(found.doit() - right.doit(), rational=True)
        return difference == 0 or difference.expand() == 0 or simplify(difference) == 0

    def formulas(answer: str, gold: str) -> bool:
        if not is_value(answer, gold):
            return False
        found, right = read(answer), read(gold)
        if all(isinstance(one, Expr) and not isinstance(one, Symbol) for one in (found, right)):
            return (same_constant if found.is_number and right.is_number else same_expression)(found, right)
        equal = verify(right, found, timeout_seconds=0, allow_set_relation_comp=True)
        if equal or not (is_relation(found) and is_relation(right)):
            return equal
        # Relations of one variable are compared by their solutions.
        one = len(right.free_symbols) == 1 and found.free_symbols == right.free_symbols
        return one and found.as_set() == right.as_set()

    def equations(answer: str, gold: str) -> bool:
        """Whether the differences of the two sides are proportional."""
        sides = [read(side) for equation in (answer, gold) for side in EQUALS.split(equation)]
        if len(sides) != 4 or not all(isinstance(side, Expr) for side in sides) or not is_value(answer, gold):
            return False
        left, right, gold_left, gold_right = (side.doit() for side in sides)
        ratio = simplify((left - right) / (gold_left - gold_right)) if gold_left != gold_right else None
        return ratio is not None and bool(ratio.is_number and ratio.is_finite and ratio.is_nonzero)

    return _total(formulas), _total(equations)


def _total(compare: Equal) -> Equal:
    """The comparison, which is False where it fails."""

    @wraps(compare)
    def compared(found: str, right: str) -> bool:
        try:
            return bool(compare(found, right))
        except Exception:  # the reader raises a plain Exception for what it can't read, and SymPy any
            return False

    return compared


def published_comparison() -> Callable[[str, str], bool]:
    """Plain Math-Verify, as published evaluations compare: the gold in a box, the answer unchanged."""
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    latex = LatexExtractionConfig()

    def equal(answer: str, gold: str) -> bool:
        right = parse(rf"\boxed{{{gold}}}", [latex], parsing_timeout=0)
        found = parse(answer, [ExprExtractionConfig(), latex], parsing_timeout=0)
        return verify(right, found, timeout_seconds=0)

    return _total(equal)


def is_value(found: str, right: str) -> bool:
    """Whether an answer is evaluated as far as the accepted one is, and has no index that the accepted one has not."""
    if _calculations(found) - _calculations(right) or ("'" in found) != ("'" in right):  # the reader drops primes
        return False
    if _INDEX.search(_NAMED.sub("x", found)) and not _INDEX.search(_NAMED.sub("x", right)):
        return False
    named = _TRIGONOMETRY.search(right) or _VARIABLE.search(_COMMAND.sub("", right))
    if _TRIGONOMETRY.search(found) and not named:
        return False
    number = number_of(right)
    rounded = number is not None and number.places is not None and number.value.denominator > 1
    return number is None or (rounded and _IRRATIONAL.search(found) is not None) or _is_closed(found)


def _calculations(text: str) -> set[str]:
    """The kinds of calculations in a text, which are never the form of a result unless they are asked for."""
    return {next(name for name in found.groups() if name) for found in _CALCULATION.finditer(text)}


def _is_closed(found: str) -> bool:
    """Whether a text is a form of a number: one operation at most (`3^3`, `5!`, `22 + 5`), or factors with powers."""
    form = found.replace(" ", "")
    before = ""
    while form != before:
        before = form
        for pattern, sign in _STEPS:
            form = pattern.sub(sign, form)
        form = _BRACKETS.sub(r"\1", _RAISED.sub("P", form))
    return bool(_ONE_STEP.fullmatch(form) or ("P" in form and _PRODUCT.fullmatch(form)))
