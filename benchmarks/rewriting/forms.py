"""The forms that gold answers have, and what is read out of them."""

import re
from collections.abc import Callable, Iterator
from fractions import Fraction

Rule = Callable[[str], Iterator[str]]

INTEGER = re.compile(r"-?\d+")
DECIMAL = re.compile(r"-?\d*\.\d+")
GROUPED = re.compile(r"\d{1,3}(?:,(?:\\! ?)?\d{3})+")
FRACTION = re.compile(r"(-?)\\[dt]?frac ?(?:\{(\d+)\}|(\d)) ?(?:\{(\d+)\}|(\d))")
MIXED = re.compile(r"(\d+) ?\\frac\{(\d+)\}\{(\d+)\}")
DEGREES = re.compile(r"(.*?)(?:\^\\circ|\\text\{ degrees\})")
MONEY = re.compile(r"\\\$(.*)")
MEASURE = re.compile(r"(\d[\d.]*) ?\\(?:text|mbox)\{ ?([a-z]+)\}(\^2)?")
NUMERAL = re.compile(r"(\d+)_\{?(\d+)\}?")
WORDS = re.compile(r"\\text\{\(?([A-Za-z]+)\)?\}")
INTERVAL = re.compile(r"(?:x \\in )?(?P<open>[(\[]) ?(?P<low>[^,]*), ?(?P<high>[^,]*?) ?(?P<close>[)\]])")
TUPLE = re.compile(r"(?:\\left)?\( ?(.*,.*?) ?(?:\\right)?\)")
EQUATION = re.compile(r"([^=]+?) ?= ?([^=]+)")
ROOT = re.compile(r"\\sqrt(?:\{([^{}]*)\}|(\d))")
ROOT_TIMES = re.compile(r"(-?)(\d+) ?\\sqrt(?:\{(\d+)\}|(\d))")
PLUS_MINUS = re.compile(r"(\d+) ?\\pm ?(.*)")
SUM = re.compile(r"[^=,()\[\]{}_]*(?:\{\d+\}[^=,()\[\]{}_]*)*")
UNITS = (
    " cm",
    r"\text{ cm}",
    " mi",
    " cm^2",
    r" \text{ square units}",
    " apples",
    " units",
    r"\text{ meters}",
    " years",
)


def value_of(gold: str) -> Fraction | None:
    """The value of a number without a unit; None for what is none."""
    if INTEGER.fullmatch(gold) or DECIMAL.fullmatch(gold):
        return Fraction(gold)
    if GROUPED.fullmatch(gold):
        return Fraction(re.sub(r"\D", "", gold))
    if found := FRACTION.fullmatch(gold):
        sign, *digits = found.groups()
        over, under = (digit for digit in digits if digit)
        return Fraction(int(f"{sign}{over}"), int(under))
    if found := MIXED.fullmatch(gold):
        whole, over, under = map(int, found.groups())
        return whole + Fraction(over, under)
    return None


def entries(gold: str) -> list[str]:
    """The entries of a list or of a tuple; none of anything else."""
    inner = found[1] if (found := TUPLE.fullmatch(gold)) else gold
    listed = "," in inner and not re.search(r"[\[\]()=_]|\\cup|\\in(?![a-z])|\\[{}]|\\!|\d,\d{3}", inner)
    return [entry.strip() for entry in inner.split(",")] if listed else []


def spelt(value: Fraction) -> str:
    """A fraction as LaTeX: -\\frac{3}{2}."""
    sign = "-" if value < 0 else ""
    return f"{value}" if value.denominator == 1 else rf"{sign}\frac{{{abs(value.numerator)}}}{{{value.denominator}}}"


def ends(value: Fraction) -> int | None:
    """Number of decimal places, where these end; None where they go on, or are more than eight."""
    return next((places for places in range(9) if (value * 10**places).denominator == 1), None)
