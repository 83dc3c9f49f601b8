r"""Compares two results: part by part, numbers exactly, and the rest by computer algebra.

    same(r"x = \frac{1}{2}", "0.5") is True

Parts, equations, units and numbers are compared here, since Math-Verify treats lists as sets, accepts `0=0` as a
solution, and drops units. Math-Verify compares only the remaining formulas.
"""

import re
from collections.abc import Callable
from fractions import Fraction

from coa.grading.latex import unstyled, words_of
from coa.grading.mathematics.dates import same_written
from coa.grading.mathematics.numbers import Number, number_of, same_in_base, same_number
from coa.grading.mathematics.shapes import Shape, is_whole, same_shape, set_of, shape_of, vector_of
from coa.grading.mathematics.units import PERCENT, Unit, factor, joined, without_unit
from coa.grading.notation import STYLED

EQUALS = re.compile(r"(?<![<>!:\\])=")
"""The sign between the sides of an equation."""
_APPROXIMATELY = re.compile(r"\\(?:approx|simeq|doteq)(?![A-Za-z])")
_NAME = re.compile(
    r"(?:\\angle ?)?\\?[A-Za-z]+'*(?:_(?:\{[^=]*\}|\w))?(?:\([^=()]*\))?|\\text\{[^{}=]*\}|\([A-Za-z](?:, ?[A-Za-z])+\)"
)
_RELATION = re.compile(r"[<>=]|\\(?:[lg]eq?|ne|neq|in|cup|cap|pm|begin|subset|setminus)(?![A-Za-z])")
_STYLED = re.compile(rf"\\(?:{STYLED}) ?(?=\{{)")
_GAP = re.compile(r"(?<!frac )(?<![\d_^])\d+ \d")
"""Digits with a blank between them, which Math-Verify reads as one number."""
_LETTERS = 3
"""Maximum letters of a product of variables; more are a word."""
_SUBSTANCE = re.compile(r"(?:[A-Z][a-z]?(?:_?\d{1,4}|_\{\d{1,4}\})?)+")
_EITHER = re.compile(r"(?<![A-Za-z])or(?![A-Za-z])|或")
_BLANKS = re.compile(r" (?=\W)|(?<=\W) |(?<=\d) (?=[A-Za-z])")
_RATIO = re.compile(r"\d ?: ?\d")
_DOTS = re.compile(r" ?(?:\.\.\.|\\[lc]?dots)\Z")
_DECIMAL_COMMA = re.compile(r"\A([+-]?\d+),(\d{1,2}|\d{4,})(?!\d)(?=[^,;]*\Z)")
_DECIMAL = re.compile(r"[^,]*\.\d[^,]*")
_POINT = re.compile(r"[A-Z]'*(?=\(.*,.*\)\Z)")
_IMAGINARY = re.compile(r"(?<![A-Za-z\\])(?:1(?:\.0*)?)?[jI](?![A-Za-z])")

Equal = Callable[[str, str], bool]
"""Compares a result with the gold's."""


def same(found: str, right: str, formulas: Equal, equations: Equal) -> bool:
    """Whether a result equals the gold's. formulas: compares two expressions, or a set with a relation that describes
    it; equations: compares two equations."""

    def parts(found: str, right: str) -> bool:
        return same(found, right, formulas, equations)

    found, right = set_of(found), set_of(right)
    found = _in_notation_of(right, found)
    if not found or not right:
        return False
    if _BLANKS.sub("", found) == _BLANKS.sub("", right):
        return True
    if (written := same_written(found, right)) is not None:
        return written
    found, right = joined(found), joined(right)
    if _SUBSTANCE.fullmatch(unstyled(right)) and _substance(found) == _substance(right):
        return True
    gold = number_of(right)
    if _RATIO.search(found) and not _RATIO.search(right) and (gold is None or gold.value.denominator == 1):
        return False
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
    if not found:
        return False
    vectors = vector_of(found), vector_of(right)
    if (vectors[0] == found) != (vectors[1] == right):
        found, right = vectors
    its_shape, shape = shape_of(found), shape_of(right)
    if shape.opening == "(" and its_shape.listed and _EITHER.search(found):
        return False
    if its_shape.single and shape.single:
        return _same_one(found, right, formulas)
    by_shape = same_shape(its_shape, shape, parts)
    if by_shape is None:
        return _describes(its_shape, found) and _describes(shape, right) and formulas(found, right)
    return by_shape


def _in_notation_of(right: str, found: str) -> str:
    """The answer in the accepted answer's notation: its decimal point, its imaginary unit, a point without a name.

    Empty if digits are left out (`27...`) and the number has no decimal point.
    """
    if _DECIMAL.fullmatch(right):
        found = _DECIMAL_COMMA.sub(r"\1.\2", found)
    if right.startswith("(") and (name := _POINT.match(found)):
        found = found[name.end() :]
    if "i" in right and "j" not in right:
        found = _IMAGINARY.sub("i", found)
    if (dots := _DOTS.search(found)) and not _DOTS.search(right):
        found = found[: dots.start()] if "." in found[: dots.start()] else ""
    return found


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
    if (written := same_written(found, right)) is not None:
        return written
    if number is not None and gold is not None:
        return any(same_number(each, gold) for each in _readings(number, its_unit, unit, times))
    return times == 1 and not _GAP.search(found) and formulas(found, right)


def _readings(number: Number, its_unit: Unit | None, unit: Unit | None, times: Fraction) -> list[Number]:
    """Possible values of a number in the gold's unit: if only one side has a percent sign, with and without it.
    A share such as 3/4 is not three quarters of a percent."""
    scales = [times]
    if (its_unit == PERCENT) != (unit == PERCENT):
        scales = [Fraction(1, 100) if its_unit == PERCENT else Fraction(100)]
        if abs(number.value) >= 1 or (unit == PERCENT and number.places):
            scales.append(Fraction(1))
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
    if len({number.value for side in sides if (number := number_of(side))}) > 1:
        return ""  # 28 = 27
    if approximate and (_NAME.fullmatch(sides[-1]) or not sides[-1]):
        return approximate[-1]
    return sides[0] if _NAME.fullmatch(sides[-1]) and not _NAME.fullmatch(sides[0]) else sides[-1]


def _unwrapped(text: str) -> str:
    """The text without redundant brackets or braces around the whole."""
    while True:
        bare = _STYLED.sub("", text, count=1) if _STYLED.match(text) else text
        if bare[:1] + bare[-1:] not in ("()", "{}") or not is_whole(bare[1:-1]) or shape_of(bare).opening:
            return text
        text = bare[1:-1].strip()


def _substance(text: str) -> str:
    r"""A chemical formula without indices and fonts: H2O for `\ce{H_2O}`."""
    text = re.sub(r"\A\\ce ?\{(.*)\}\Z", r"\1", unstyled(text))
    return re.sub(r"_(?:\{(\d+)\}|(\d+))", r"\1\2", text)
