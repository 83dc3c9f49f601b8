r"""Reads numbers exactly, in any notation: number_of(r"-1\frac{4}{5}").value == Fraction(-9, 5).

Most answers are such numbers and need no computer algebra.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_EXPONENT = 300
"""Maximum power of ten that is multiplied out."""
_ROUNDED = Fraction(1, 10**5)
"""Maximum relative error of a rounded number."""
_FLOAT = Fraction(1, 10**12)
"""Maximum relative error of a number computed in floating point."""

_DIGITS = r"\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+"
_PLAIN = re.compile(
    rf"(?P<sign>[+-]?) ?(?P<number>{_DIGITS})(?: ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?\{{?(?P<power>-?\d{{1,4}})\}}?|"
    r"[eE](?P<float>[+-]?\d{1,4}))?"
)
_OVER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:(?P<whole>\d+) (?=\d+/\d+\Z))?(?P<over>{_DIGITS}) ?/ ?(?P<under>[+-]?(?:{_DIGITS}))"
)
_FRAC = re.compile(
    r"(?P<sign>[+-]?) ?(?P<whole>\d*) ?\\[dtc]?frac ?(?:\{ ?(?P<over>[+-]?\d+) ?\}|(?P<over_digit>\d)) ?"
    r"(?:\{ ?(?P<under>[+-]?\d+) ?\}|(?P<under_digit>\d))"
)


@dataclass(frozen=True, slots=True)
class Number:
    """A number as it is written."""

    value: Fraction
    places: int | None
    """Digits after the decimal point; None without a decimal point: the number is not rounded."""


def number_of(text: str) -> Number | None:
    """The number, if the whole text is a number; otherwise None."""
    if found := _PLAIN.fullmatch(text):
        digits, power = re.sub("[, ]", "", found["number"]), int(found["power"] or found["float"] or 0)
        if abs(power) > _EXPONENT:
            return None
        value = Fraction(f"{found['sign']}{digits}") * Fraction(10) ** power
        return Number(value, len(digits.partition(".")[2]) - power if "." in digits else None)
    if found := _OVER.fullmatch(text):
        over, under = (re.sub("[, ]", "", found[part]) for part in ("over", "under"))
        return _quotient(found["sign"], found["whole"] or "", over, under)
    if found := _FRAC.fullmatch(text):
        over, under = found["over"] or found["over_digit"], found["under"] or found["under_digit"]
        return _quotient(found["sign"], found["whole"], over, under)
    return None


def _quotient(sign: str, whole: str, over: str, under: str) -> Number | None:
    if not Fraction(under):
        return None
    value = Fraction(whole or 0) + Fraction(over) / Fraction(under)
    return Number(-value if sign == "-" else value, None)


def same_number(found: Number, right: Number) -> bool:
    """Whether two numbers are the same; a number with a decimal point may be the other number, rounded or truncated."""
    apart, size = abs(found.value - right.value), abs(right.value)
    places = right.places if found.places is None else found.places
    if not apart or places is None:
        return not apart
    return apart <= _FLOAT * size or (apart <= _ROUNDED * size and apart < Fraction(10) ** -places)
