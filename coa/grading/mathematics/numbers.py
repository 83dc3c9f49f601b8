r"""Reads numbers exactly, in any notation: number_of(r"-1\frac{4}{5}").value == Fraction(-9, 5), and compares numerals
of a base: same_in_base(r"11111_{\text{two}}", "11111_2") is True.

Most answers are such numbers and need no computer algebra.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

from coa.grading.notation import STYLED

_EXPONENT = 300
"""Maximum power of ten that is multiplied out."""
_POWER_BITS = 4000
"""Maximum length of a power of other bases that is multiplied out."""
_ROUNDED = Fraction(1, 10**5)
"""Maximum relative error of a rounded number."""
_FLOAT = Fraction(1, 10**12)
"""Maximum relative error of a number computed in floating point."""
_FLOAT_WHOLE = Fraction(1, 10**6)
"""Maximum absolute error of a whole number computed in floating point."""
SCALES = {
    "hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12, "万": 4, "萬": 4, "亿": 8, "億": 8,
    "兆": 12, "만": 4, "억": 8, "千": 3, "百": 2,
}  # fmt: skip

_DIGITS = r"\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?|\d+(?:\.\d*)?|\.\d+"
_PLAIN = re.compile(
    rf"(?P<sign>[+-]?) ?(?P<number>{_DIGITS})(?: ?(?:\\times|\\cdot|\*|x) ?10 ?\^ ?\{{?(?P<power>[+-]?\d{{1,4}})\}}?|"
    rf"[eE](?P<float>[+-]?\d{{1,4}})| ?(?P<scale>{'|'.join(SCALES)}))?"
)
_OVER = re.compile(
    rf"(?P<sign>[+-]?) ?(?:(?P<whole>\d+) (?=\d+/\d+\Z))?(?P<over>{_DIGITS}) ?/ ?(?P<under>[+-]?(?:{_DIGITS}))"
)
_FRAC = re.compile(r" ?\\frac ?(?:\{ ?([+-]?\d+) ?\}|(\d)) ?(?:\{ ?([+-]?\d+) ?\}|(\d))")
_POWER = re.compile(
    r"(?P<sign>[+-]?) ?(?P<base>\d{1,9}) ?\^ ?(?:\{ ?(?P<braced>[+-]?\d{1,4}) ?\}|(?P<exponent>\d{1,4}))"
)
_REPEATING = re.compile(
    r"(?P<sign>[+-]?) ?(?P<whole>\d*)\.(?P<first>\d*)\\(?:overline|bar|dot) ?(?:\{ ?(?P<braced>\d+) ?\}|(?P<digit>\d))"
)

_BASE_NAMES = "two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_BASES = {name: str(base) for base, name in enumerate(_BASE_NAMES.split(), 2)} | {
    "binary": "2",
    "octal": "8",
    "hexadecimal": "16",
}
_NAMED = rf"\d+|{'|'.join(_BASES)}"
_STYLED = re.compile(rf"\\(?:{STYLED})")
_NUMERAL = re.compile(
    r"(?P<sign>-?)(?:\((?P<inner>[0-9][0-9a-f]*)\)|(?P<digits>[0-9][0-9a-f]*))"
    rf"(?:_(?:\{{\(?(?:base)?(?P<braced>{_NAMED})\)?\}}|\(?(?P<base>{_NAMED})\)?)"
    rf"|(?:\(|in)?(?:base)(?P<named>{_NAMED})\)?|(?:\(|in)(?P<alone>binary|octal|hexadecimal)\)?)?",
    re.IGNORECASE,
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
        digits = re.sub("[, ]", "", found["number"])
        power = int(found["power"] or found["float"] or SCALES.get(found["scale"], 0))
        if abs(power) > _EXPONENT:
            return None
        value = Fraction(f"{found['sign']}{digits}") * Fraction(10) ** power
        return Number(value, len(digits.partition(".")[2]) - power if "." in digits else None)
    if found := _OVER.fullmatch(_FRAC.sub(r" \1\2/\3\4", text).lstrip()):
        over, under = (re.sub("[, ]", "", found[part]) for part in ("over", "under"))
        return _quotient(found["sign"], found["whole"] or "", over, under)
    if found := _POWER.fullmatch(text):
        return _power(found["sign"], int(found["base"]), int(found["braced"] or found["exponent"]))
    if found := _REPEATING.fullmatch(text):
        again = found["braced"] or found["digit"]
        value = Fraction(f"{found['whole'] or 0}.{found['first']}")
        value += Fraction(int(again), 10 ** len(found["first"]) * (10 ** len(again) - 1))
        return _signed(found["sign"], value)
    return None


def _quotient(sign: str, whole: str, over: str, under: str) -> Number | None:
    if not Fraction(under):
        return None
    return _signed(sign, Fraction(whole or 0) + Fraction(over) / Fraction(under))


def _power(sign: str, base: int, exponent: int) -> Number | None:
    if base.bit_length() * abs(exponent) > _POWER_BITS or (not base and exponent <= 0):
        return None
    return _signed(sign, Fraction(base) ** exponent)


def _signed(sign: str, value: Fraction) -> Number:
    return Number(-value if sign == "-" else value, None)


def same_number(found: Number, right: Number) -> bool:
    """Whether two numbers are the same; a number with a decimal point may be the other number, rounded or truncated.

    A whole number is exact: only the error of floating point is allowed, as in 26.999999999999996.
    """
    apart, size = abs(found.value - right.value), abs(right.value)
    places = right.places if found.places is None else found.places
    if not apart or places is None:
        return not apart
    if right.value.denominator == 1:
        return apart <= min(_FLOAT * size, _FLOAT_WHOLE)
    return apart <= _FLOAT * size or (apart <= _ROUNDED * size and apart < Fraction(10) ** -places)


def same_in_base(answer: str, gold: str) -> bool | None:
    """Whether two numerals, at least one of them with a base (`40_9`), are the same; None if neither has a base.

    An answer may omit the gold's base; a base in the answer must be the gold's, which is 10 by default.
    """
    found, right = (_NUMERAL.fullmatch(_squeezed(text)) for text in (answer, gold))
    its_base, base = _base(found), _base(right)
    if its_base is None and base is None:
        return None
    if found is None or right is None:
        return False
    same = [found["sign"], _numeral_digits(found)] == [right["sign"], _numeral_digits(right)]
    return same and its_base in (None, base or "10")


def _squeezed(text: str) -> str:
    """The text without fonts and blanks, and without braces around the digits and the base."""
    bare = _STYLED.sub("", text).replace(" ", "").replace("{{", "{").replace("}}", "}")
    return re.sub(r"\A(-?)\{([0-9A-Fa-f]+)\}(?=_)", r"\1\2", bare)


def _numeral_digits(numeral: re.Match[str]) -> str:
    return (numeral["digits"] or numeral["inner"]).lower()


def _base(numeral: re.Match[str] | None) -> str | None:
    if numeral is None:
        return None
    name = numeral["braced"] or numeral["base"] or numeral["named"] or numeral["alone"]
    return name and _BASES.get(name.lower(), name)
