r"""Separates the unit of a quantity: without_unit(r"864 \mbox{ inches}^2") == ("864", Unit(("inch", "inch"))).

A unit may be omitted, and so may its square or cube, and what a price is for. What is counted may have any name. But
a distance is no speed: known units are converted if they measure the same; otherwise the quantities differ.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from coa.grading.latex import ASIAN
from coa.grading.mathematics.numbers import SCALES
from coa.grading.notation import STYLED

_TABLE = """
m meter metre 米 м :nµmcdk; mm 毫米 мм = 0.001 m; cm 厘米 см = 0.01 m; dm 分米 = 0.1 m; km 千米 公里 км = 1000 m;
inch in inche = 0.0254 m; foot feet ft = 12 inch; yard yd = 3 foot; mile mi = 1760 yard;
acre = 4840 yard yard; hectare ha = 10000 m m;
l liter litre 升 = 0.001 m m m :µmcd; ml 毫升 cc = 0.001 l; gallon gal = 231 inch inch inch;
g gram 克 :nµmk; kg 千克 公斤 кг = 1000 g; ton 吨; pound lb; ounce oz = 0.0625 pound;
s second sec 秒 초 :nµm; minute min 分 分钟 分鐘 분 мин = 60 s; hour h hr 小时 小時 時間 시간 = 60 minute;
day 天 日 일 = 24 hour; week 周 = 7 day; month 月 か月 ヶ月 개월; year yr 年 년 = 12 month;
dollar usd us; cent = 0.01 dollar; yen 元 円 圆 jpy cny rmb; won 원 krw; euro eur; £ gbp; franc chf; rupee rs inr;
ruble; 角; percent; degree deg 度; radian rad; celsius centigrade; fahrenheit; K kelvin :*;
A amp ampere :*; C coulomb :*; F farad :*; mol mole :*; cal calorie :*; eV electronvolt :*; atm;
N newton = 1000 g m / s s :*; J joule = N m :*; W watt = J / s :*; kWh kwh = 3600000 J; Pa pascal = N / m m :*;
V volt = W / A :*; Ω ohm = V / A :*; Wb weber = V s :*; T tesla = Wb / m m :*; H henry = Wb / A :*;
Hz hz hertz = / s :*; kHz khz = 1000 Hz; MHz mhz = 1000000 Hz; mph = mile / hour; kmh kph kmph = km / hour"""
"""Of each unit the symbol, other names, what it is made of (behind a slash: divided by that), and its prefixes."""
_PREFIXES = (
    ("", "", 0), ("n", "nano", -9), ("µ", "micro", -6), ("m", "milli", -3), ("c", "centi", -2), ("d", "deci", -1),
    ("k", "kilo", 3), ("M", "mega", 6), ("G", "giga", 9),
)  # fmt: skip
_MONEY = frozenset(("dollar", "yen", "won", "euro", "£", "franc", "rupee", "ruble", "角"))
_SAME = {("pound", "£"), ("celsius", "C"), ("celsius", "degree"), ("fahrenheit", "F"), ("fahrenheit", "degree")}
"""Units whose names may mean the same."""
_NO_COUNTER = re.compile(
    r"[万萬亿億兆千百十만억천백십多余餘超未半割成折無无]|以|不(?!同)|分[之の]|ない|ません|아니|이상|이하|미만|초과|\A여|[반할中]\Z"
)
"""Marks that change the number before them, among those that Chinese, Japanese and Korean put after a number of
things."""
_POWERS = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = {"squared": 1, "cubed": 2}
_PER = frozenset({"/", "per", "a", "an"})
_FILLERS = frozenset({"of", "the"})
_NO_UNIT = re.compile(
    "or|and|not?|more|less|fewer|than|at|least|most|plus|minus|times|over|under|factorial|if|when|except|without|unless"
    "|but|roots?|choose|base|to|through|until|up|down|below|above|between|from|negative|positive|wrong|incorrect"
    "|undefined|unknown|none|true|false|is|are|does|mod(?:ulo)?|mil|mille|tausend|hundert|dutzend|milli(?:onen|arden|ones)"
    "|(?:hundred|thousand|million|billion|trillion|milliard|dozen|half|halve|third|quarter|lakh|crore)s?"
    "|(?:ten|hundred|thousand|four|fif|six|eigh)ths?|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty"
)
"""Words after a number that are not units."""

_POWER = r"\^ ?(?:\{ ?-?[1-9] ?\}|-?[1-9])"
_DEGREE = r"\^ ?(?:\{ ?\\circ ?\}|\\circ(?![A-Za-z]))"
_TEXT = rf"\\(?:{STYLED}) ?\{{(?:[^{{}}^\d]|{_POWER})*+\}}"
_UNDER = rf"\{{(?:{_TEXT}|{_POWER}|[^{{}}^\d])*+\}}"
_TAIL = re.compile(
    rf"(?<=[\d}}) \]{''.join(name for name in SCALES if len(name) == 1)}])(?!\^ ?\{{? ?-?\d|[.*)\]])"
    rf"(?:{_TEXT}|\\frac ?{_UNDER} ?{_UNDER}|[^\W\d_]{{1,30}}+|{_POWER}|{_DEGREE}|\\(?:cdot|mu|Omega)(?![A-Za-z])"
    r"|[ ./*()\[\]]){1,16}\Z"
)
_SPELLINGS = (
    (re.compile(rf"\\(?:{STYLED}) ?\{{((?:[^{{}}]|\{{[^{{}}]*\}})*+)\}}"), r" \1"),
    (re.compile(r"\\frac ?\{((?:[^{}]|\{-?\d\})*+)\} ?\{((?:[^{}]|\{-?\d\})*+)\}"), r" \1/\2"),
    (re.compile(rf"(?:{_DEGREE}|\bdeg(?:rees?)?\b) *(?:C|[Cc]elsius)(?![a-z])"), " celsius"),
    (re.compile(rf"(?:{_DEGREE}|\bdeg(?:rees?)?\b) *(?:F|[Ff]ahrenheit)(?![a-z])"), " fahrenheit"),
    (re.compile(r"\\cdot"), " "),
    (re.compile(r"\\mu ?|μ"), "µ"),
    (re.compile(r"\\Omega|\u2126"), "Ω"),
    (re.compile(r"\( ?in (?=[a-z])"), "("),
)
_TOKEN = re.compile(r"(?P<word>/|[^\W\d_]++)(?: ?\^ ?\{? ?(?P<power>-?[1-9]))?")
_COMPLETE = re.compile(rf"(?:[\d)}}\].!]|\\pi|(?<=[\d}})])[A-Za-z]|{'|'.join(SCALES)})\Z")
"""The end of a number or formula that a unit may follow."""
_QUANTITY = re.compile(r"(\d{1,15}+(?:\.\d{1,15}+)?) ?([^\W\d_]{1,30}+)\.?(?:,? (?:and )?|(?=\d)|\Z)")

_DEGREES = re.compile(rf"(?: ?{_DEGREE}| ?\\degrees?| ?\^ ?\{{ ?\\text ?\{{o\}} ?\}}| ?\\text ?\{{ ?\^\\circ ?\}})\Z")
_PERCENT = re.compile(r" ?(?:\\?%|per cent|\\text ?\{ ?(?:\\?%|per cent) ?\})\Z")
_SIGNS = {"$": "dollar", "¢": "cent", "€": "euro", "£": "£", "¥": "yen", "₹": "rupee", "₩": "won", "₽": "ruble"}
_CURRENCY = re.compile(
    r"(?P<sign>-?) ?(?:(?:US|A|C|HK|R)?\\?(?P<mark>[$€£¥₹₩₽])|(?P<code>US|USD|EUR|GBP|JPY|CNY|RMB|Rs\.?))(?= ?[\d.-])"
)
_CURRENCY_AFTER = re.compile(r"(?<=[\d ])(?P<mark>[€£¥₹₩₽¢])\Z")


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit, each name as often as its power says: Unit(("m",), ("s", "s")) for `m/s^2`."""

    above: tuple[str, ...]
    """Known units, or else the first word of what is counted; empty if that is not said."""
    below: tuple[str, ...] = ()


PERCENT = Unit(("percent",))
Measure = tuple[Fraction, Counter[str]]
"""The size of a unit, and the powers of those units in it that are made of no others."""


def _measure(above: Iterable[str], below: Iterable[str], known: dict[str, Measure]) -> Measure:
    scale, bases = Fraction(1), Counter[str]()
    for names, sign in ((above, 1), (below, -1)):
        for name in names:
            its_scale, its_bases = known[name] if name in known else (Fraction(name), Counter[str]())
            scale *= its_scale**sign
            bases.update({base: sign * power for base, power in its_bases.items()})
    return scale, bases


def _measures() -> dict[str, Measure]:
    known: dict[str, Measure] = {}
    for line in _TABLE.split(";"):
        units, _, prefixes = line.replace("*", "nµmkMG").partition(":")
        names, _, made_of = units.partition("=")
        symbol, *words = names.split()
        above, below = (side.split() for side in (*made_of.partition("/"),)[::2])
        size, bases = _measure(above, below, known) if made_of else (Fraction(1), Counter({symbol: 1}))
        for short, long, power in _PREFIXES:
            if short in prefixes:
                every = (f"{short}{symbol}", *(f"{long}{word}" for word in words))
                known |= dict.fromkeys(every, (size * Fraction(10) ** power, bases))
    return known


_KNOWN = _measures()


def without_unit(text: str) -> tuple[str, Unit | None]:
    """The text without the unit at its end (or the currency before it), and the unit; None if there is no unit."""
    if found := _CURRENCY.match(text):
        unit = _SIGNS[found["mark"]] if found["mark"] else _name(found["code"].rstrip("."))
        amount, price = _split(text[found.end() :].lstrip())
        return f"{found['sign']}{amount}", Unit((unit,), price.below if price else ())
    if found := _CURRENCY_AFTER.search(text):
        return text[: found.start()].rstrip(), Unit((_SIGNS[found["mark"]],))
    for pattern, unit in ((_DEGREES, Unit(("degree",))), (_PERCENT, PERCENT)):
        if (found := pattern.search(text)) and text[: found.start()].strip():
            return text[: found.start()].strip(), unit
    return _split(text)


def _split(text: str) -> tuple[str, Unit | None]:
    at = 0
    while found := _TAIL.search(text, at):
        at, body, tail = found.start() + 1, text[: found.start()].rstrip(), found[0]
        attached = text[: found.start()] == body and (tail[0] == "/" or tail[0].isalpha())
        complete = _COMPLETE.search(body) and re.search(r"\d|\\pi", body)
        if complete and (unit := _unit(tail, attached=attached)):
            return body, unit
    return text, None


def _unit(tail: str, *, attached: bool) -> Unit | None:
    """The unit at the end of a text; None if that is none. attached: whether it is letters right after the number."""
    if tail.count("(") != tail.count(")") or tail.count("[") != tail.count("]"):
        return None
    for pattern, plain in _SPELLINGS:
        tail = pattern.sub(plain, tail)
    sides: tuple[list[str], list[str]] = ([], [])
    side, times = 0, 1
    words = [(token["word"], int(token["power"] or 1)) for token in _TOKEN.finditer(tail)]
    for word, power in words:
        low = word.lower()
        if _NO_UNIT.fullmatch(low) or (low in _RAISED and not sides[side]):
            return None
        if word in _PER:
            side = 1
        elif low in _POWERS:
            times = _POWERS[low]
        elif low in _RAISED:
            sides[side].extend(sides[side][-1:] * _RAISED[low])
        elif word not in _FILLERS:
            name = _name(word)
            asian = re.match(ASIAN, word)
            if name not in _KNOWN and (
                _NO_COUNTER.search(word) if asian else len(word) < 3 or (attached and not any(sides))
            ):
                return None
            if not sides[side] or (name in _KNOWN and sides[side][0] in _KNOWN):
                sides[side if power > 0 else 1 - side].extend([name] * abs(times * power))
            times = 1
    letters = [word for word, _ in words if word.isalpha() and word.isascii() and len(word) == 1]
    others = len(words) - len(letters)
    product = not others and len(words) > 1 and "".join(letters).islower() and all(power == 1 for _, power in words)
    if product or (attached and len(letters) == 1 and others <= (words[0][0] == "/")):
        return None  # variables
    return Unit(tuple(sides[0]), tuple(sides[1])) if any(sides) else None


def _name(word: str) -> str:
    """The name of a known unit, whose symbol or word this is; the singular of any other word."""
    low = word.lower()
    for one in (word, low, low.removesuffix("s"), low.removesuffix("es"), low.lstrip("个個")):
        if one in _KNOWN:
            return one
    return low.removesuffix("s")


def is_known(unit: Unit) -> bool:
    """Whether a unit is a known one, or what Chinese, Japanese or Korean put after a number of things."""
    return all(name in _KNOWN or re.match(ASIAN, name) for name in unit.above)


def joined(text: str) -> str:
    """A quantity of several units in the last of them: `90 minute` for `1 hour and 30 minutes`; any other text as it
    is."""
    parts = list(_QUANTITY.finditer(plain := " ".join(_SPELLINGS[0][0].sub(r" \1 ", text).split())))
    if len(parts) < 2 or "".join(part[0] for part in parts) != plain:
        return text
    names = [_name(part[2]) for part in parts]
    if _KNOWN.get(names[0]) == _KNOWN["hour"]:
        names = ["minute" if name == "m" else name for name in names]
    found = [_KNOWN.get(name, (Fraction(0), Counter())) for name in names]
    sizes = [size for size, bases in found if bases == found[0][1]]
    if len(sizes) < len(found) or sizes != sorted(set(sizes), reverse=True):
        return text
    total = sum(Fraction(part[1]) * size for part, size in zip(parts, sizes, strict=True))
    return f"{total / sizes[-1]} {names[-1]}"


def factor(found: Unit | None, right: Unit | None) -> Fraction | None:
    """The factor that converts a number from the first unit to the second; None if the units are incompatible.

    The factor is 1 if a unit is missing, or only names what is counted.
    """
    if found is None or right is None:
        return Fraction(1)
    found, right = (
        Unit(*(names if _KNOWN.keys() >= set(names) else () for names in (unit.above, unit.below)))
        for unit in (found, right)
    )
    if (exact := _ratio(found, right)) is not None:
        return exact
    counted = not (found.above and right.above)
    bare = [unit for unit in (found, right) if not unit.below]
    if len(bare) == 1 and (not bare[0].above or _KNOWN[bare[0].above[0]][1].keys() & _MONEY):
        found, right = Unit(found.above), Unit(right.above)
    return _ratio(Unit((), found.below), Unit((), right.below)) if counted else _ratio(found, right)


def _ratio(found: Unit, right: Unit) -> Fraction | None:
    """How many of the second unit the first one is; None if they are incompatible."""
    (size, bases), (its_size, its_bases) = (_measure(unit.above, unit.below, _KNOWN) for unit in (found, right))
    names = found.above + right.above
    powerless = names and all(_KNOWN[name] == _KNOWN[names[0]] for name in names) and not found.below + right.below
    if powerless and 1 in (len(found.above), len(right.above)):
        return Fraction(1)
    if size == its_size == 1 and any(Counter(pair) == bases + its_bases for pair in _SAME):
        return size
    return size / its_size if bases == its_bases else None
