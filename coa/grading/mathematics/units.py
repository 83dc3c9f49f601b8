r"""Separates the unit of a quantity: without_unit(r"864 \mbox{ inches}^2") == ("864", Unit("inch", 2)).

A unit may be omitted, and a wrong power of a unit is ignored. But cents are not dollars: two known, different units are
converted if they measure the same; otherwise the quantities differ.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_LENGTH = {"mm": 1, "cm": 10, "m": 1000, "km": 10**6, "inch": "25.4", "foot": "304.8", "yard": "914.4", "mile": 1609344}
_TIME = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": None, "year": None}
_MASS = {"mg": 1, "g": 1000, "kg": 10**6, "pound": None, "ounce": None, "ton": None}
_MONEY = {"cent": 1, "dollar": 100, "euro": None, "rupee": None}
_ANGLE = {"degree": 1, "radian": None}
_VOLUME = {"ml": 1, "liter": 1000, "gallon": None}
_KNOWN = {
    name: (dimension, None if scale is None else Fraction(scale))
    for dimension, units in enumerate((_LENGTH, _TIME, _MASS, _MONEY, _ANGLE, _VOLUME))
    for name, scale in units.items()
}
"""Units by name: the quantity that they measure, and their size in its smallest unit (None: not converted)."""
_ALIASES = {
    "millimeter": "mm", "millimetre": "mm", "centimeter": "cm", "centimetre": "cm", "meter": "m", "metre": "m",
    "kilometer": "km", "kilometre": "km", "in": "inch", "inche": "inch", "feet": "foot", "ft": "foot", "yd": "yard",
    "mi": "mile", "sec": "second", "s": "second", "min": "minute", "hr": "hour", "h": "hour", "yr": "year",
    "gram": "g", "kilogram": "kg", "milligram": "mg", "lb": "pound", "oz": "ounce", "usd": "dollar", "rad": "radian",
    "deg": "degree", "litre": "liter", "l": "liter", "gal": "gallon", "milliliter": "ml", "rs": "rupee",
}  # fmt: skip
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_FILLERS = frozenset({"per", "a", "an", "of", "the"})
_NO_UNITS = (
    "or and not no more less fewer than at least most plus minus times over under squared cubed factorial "
    "thousand million billion trillion hundred dozen dozens half halves third thirds quarter quarters mod "
    "modulo if when except without unless but root roots choose base to through until up down below above "
    "between from negative positive wrong incorrect infinity undefined unknown none true false pi inf oo mean "
    "is are does sin cos tan cot csc log ln exp sqrt arcsin arccos arctan max gcd lcm det"
)
_OTHERWISE = frozenset(_NO_UNITS.split())
"""Words after a number that are not units."""

_POWER = r"(?: ?\^ ?(?:\{ ?(\d) ?\}|(\d)))?"
_IN_TEXT = re.compile(
    rf"\\(?:text|mbox|mathrm|textrm|textbf|textit|mathbf|operatorname) ?\{{([A-Za-z .,/]+)\}}{_POWER}\Z"
)
_BARE = re.compile(rf"(?<=[\d}}) ])([A-Za-z]+(?:[ /]+[A-Za-z]+){{0,3}})\.?{_POWER}\Z")
_DEGREES = re.compile(r"(?: ?\^ ?(?:\{ ?\\circ ?\}|\\circ)| ?\\degrees?)(?![A-Za-z])\Z")
_PERCENT = re.compile(r" ?(?:\\?%|\\text ?\{ ?(?:percent|\\?%) ?\}|percent)\Z")
_CENTS = re.compile(r" ?(?:¢|\\cents?)\Z")
_CURRENCY = re.compile(r"(?P<sign>-?) ?(?:\\\$|[$€£])(?= ?[\d.-])")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit, in the singular; unknown units are ignored in comparisons."""

    name: str
    power: int = 1


PERCENT = Unit("percent")


def without_unit(text: str) -> tuple[str, Unit | None]:
    """The text without the unit at its end (or the currency before it), and the unit; None if there is no unit."""
    if found := _CURRENCY.match(text):
        return f"{found['sign']}{text[found.end() :].lstrip()}", Unit("dollar" if "$" in found[0] else found[0][-1])
    for pattern, unit in ((_DEGREES, Unit("degree")), (_PERCENT, PERCENT), (_CENTS, Unit("cent"))):
        if (found := pattern.search(text)) and text[: found.start()].strip():
            return text[: found.start()].strip(), unit
    for pattern in (_IN_TEXT, _BARE):
        found = pattern.search(text)
        attached = pattern is _BARE and text[found.start() - 1] != " " if found else False
        body = text[: found.start()].rstrip() if found else ""
        if found and re.search(r"\d|\\pi", body) and (unit := _unit(found[1], attached=attached)):
            power = int(found[2] or found[3] or 0) or unit.power
            return body, Unit(unit.name, power)
    return text, None


def _unit(words: str, *, attached: bool) -> Unit | None:
    """The unit that words name; None if they name no unit."""
    every = [word for word in re.split(r"[ ./,]+", words.lower()) if word]
    named = [word for word in every if word not in _FILLERS | _POWERS.keys()]
    if not named:
        return Unit("unit", _POWERS[every[0]]) if every and every[0] in _POWERS else None
    if any(word in _OTHERWISE for word in every):
        return None
    name = _singular(named[0])
    if (len(named[0]) == 1 and attached) or (name not in _KNOWN and (len(named[0]) < 3 or attached)):
        return None
    return Unit(name, next((_POWERS[word] for word in every if word in _POWERS), 1))


def _singular(word: str) -> str:
    for one in (word, word.removesuffix("s"), word.removesuffix("es")):
        if _ALIASES.get(one, one) in _KNOWN:
            return _ALIASES.get(one, one)
    return word.removesuffix("s")


def factor(found: Unit | None, right: Unit | None) -> Fraction | None:
    """The factor that converts a number from the first unit to the second; None if the units are incompatible.

    The factor is 1 if a unit is missing or unknown, or if the units are the same.
    """
    if found is None or right is None or found.name == right.name:
        return Fraction(1)
    if found.name not in _KNOWN or right.name not in _KNOWN:
        return Fraction(1)
    (what, scale), (its_what, its_scale) = _KNOWN[found.name], _KNOWN[right.name]
    if what != its_what or scale is None or its_scale is None:
        return None
    return (scale / its_scale) ** right.power
