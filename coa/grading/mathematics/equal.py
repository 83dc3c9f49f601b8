r"""Compares two results: part by part, numbers exactly, and the rest by computer algebra.

    same(r"x = \frac{1}{2}", "0.5") is True

Parts, equations, units and numbers are compared here, since Math-Verify treats lists as sets, accepts `0=0` as a
solution, and drops units. Math-Verify compares only the remaining formulas.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from coa.grading.latex import same_in_base, words_of
from coa.grading.mathematics.numbers import Number, number_of, same_number
from coa.grading.mathematics.shapes import Shape, same_shape, shape_of
from coa.grading.mathematics.units import PERCENT, Unit, factor, without_unit

EQUALS = re.compile(r"(?<![<>!:\\])=")
"""The sign between the sides of an equation."""
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|doteq)(?![A-Za-z])")
_NAME = re.compile(
    r"(?:\\angle ?)?\\?[A-Za-z]+'*(?:_(?:\{[^=]*\}|\w))?(?:\([^=()]*\))?|\\text\{[^{}=]*\}|\([A-Za-z](?:, ?[A-Za-z])+\)"
)
_RELATION = re.compile(r"[<>=]|\\(?:[lg]eq?|ne|neq|in|cup|cap|pm|begin|subset|setminus)(?![A-Za-z])")
_STYLED = re.compile(r"\\(?:mathbf|mathrm|boldsymbol|bm|textbf|text|mbox) ?(?=\{)")
_GAP = re.compile(r"(?<!frac )(?<![\d_^])\d+ \d")
"""Digits with a blank between them, which Math-Verify reads as one number."""
_LETTERS = 3
"""Maximum letters of a product of variables; more are a word."""
_BLANKS = re.compile(r" (?=\W)|(?<=\W) ")

Equal = Callable[[str, str], bool]
"""Compares a result with the gold's."""


def same(found: str, right: str, formulas: Equal, equations: Equal) -> bool:
    """Whether a result equals the gold's. formulas: compares two expressions, or a set with a relation that describes
    it; equations: compares two equations."""

    def parts(found: str, right: str) -> bool:
        return same(found, right, formulas, equations)

    if not found or not right:
        return False
    if _squeezed(found) == _squeezed(right):
        return True
    words = words_of(right)
    if words is not None and (len(words) > _LETTERS or "\\text" in right or words_of(found) == words):
        return words_of(found) == words
    right = _unwrapped(right)
    shape = shape_of(right)
    if EQUALS.search(right) and shape.single:
        return _same_equation(found, right, parts, equations)
    if not EQUALS.search(right):
        found = _value_of(found)
    found = _unwrapped(found)
    its_shape = shape_of(found)
    if its_shape.single and shape.single:
        return _same_one(found, right, formulas)
    by_shape = same_shape(its_shape, shape, parts)
    if by_shape is None:
        return _describes(its_shape, found) and _describes(shape, right) and formulas(found, right)
    return by_shape


def _describes(shape: Shape, text: str) -> bool:
    """Whether a text may describe a set or a vector: an interval, or anything with a relation in it."""
    return bool(_RELATION.search(text)) or (shape.opening != "" and not shape.listed)


def _same_one(found: str, right: str, formulas: Equal) -> bool:
    if (in_base := same_in_base(found, right)) is not None:
        return in_base
    found, its_unit = without_unit(found)
    right, unit = without_unit(right)
    found, right = _unwrapped(found), _unwrapped(right)
    times = factor(its_unit, unit)
    number, gold = number_of(found), number_of(right)
    if times is None:
        return False
    if number is not None and gold is not None:
        return any(same_number(each, gold) for each in _readings(number, its_unit, unit, times))
    return times == 1 and not _GAP.search(found) and formulas(found, right)


def _readings(number: Number, its_unit: Unit | None, unit: Unit | None, times: Fraction) -> list[Number]:
    """Possible values of a number in the gold's unit: if only one side has a percent sign, with and without it."""
    percents = [1, 100] if (its_unit == PERCENT) != (unit == PERCENT) else [1]
    scales = [times * (Fraction(1, each) if its_unit == PERCENT else each) for each in percents]
    return [Number(number.value * scale, number.places) for scale in scales]


def _same_equation(found: str, right: str, parts: Equal, equations: Equal) -> bool:
    """Compares equations: if the gold assigns a value to a name, the value and, if given, the name; else both sides."""
    name, value = _assignment(right)
    if not EQUALS.search(found):
        return name is not None and found != name and parts(found, value)
    its_name, its_value = _assignment(found)
    if name is not None and its_name is not None:
        return _same_name(its_name, name) and parts(its_value, value)
    if _RELATION.search(EQUALS.sub("", found)):
        return False
    return equations(found, right)


def _assignment(equation: str) -> tuple[str | None, str]:
    """The name on one side of an equation (None if no side is a name), and the value on the other side."""
    first, *_, last = [side.strip() for side in EQUALS.split(equation)]
    if _NAME.fullmatch(first):
        return first, last
    return (last, first) if _NAME.fullmatch(last) else (None, equation)


def _same_name(found: str, right: str) -> bool:
    r"""Whether two names are the same, ignoring font and index: `m`, `m_{\max}`, `m_{max}`."""

    def letters(name: str) -> str:
        return re.sub(r"\\(?:text|mathrm)|[^A-Za-z0-9]", "", name)

    parts = found.partition("_"), right.partition("_")
    return letters(parts[0][0]) == letters(parts[1][0]) and len({letters(part[2]) for part in parts} - {""}) < 2


def _value_of(found: str) -> str:
    """The value in an equation or a chain of equations; of a value and its approximation, the exact value."""
    exact, *approximate = [side.strip() for side in _APPROXIMATELY.split(found)]
    sides = [side.strip() for side in EQUALS.split(exact)]
    if any(EQUALS.search(entry) for entry in shape_of(found).entries[1:]):
        return found  # a list of equations
    if approximate and (_NAME.fullmatch(sides[-1]) or not sides[-1]):
        return approximate[-1]
    return sides[0] if _NAME.fullmatch(sides[-1]) and not _NAME.fullmatch(sides[0]) else sides[-1]


def _unwrapped(text: str) -> str:
    """The text without redundant brackets or braces around the whole."""
    while True:
        bare = _STYLED.sub("", text, count=1) if _STYLED.match(text) else text
        if bare[:1] + bare[-1:] not in ("()", "{}") or not _closes_last(bare) or not shape_of(bare).single:
            return text
        text = bare[1:-1].strip()


def _closes_last(text: str) -> bool:
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "({[") - (sign in ")}]")
        if depth == 0:
            return at == len(text) - 1
    return False


def _squeezed(text: str) -> str:
    return _BLANKS.sub("", text)
