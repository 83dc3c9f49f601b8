"""Questions about the tiny world: three families of four kinds each, and a function that parses a question."""

import re
from dataclasses import dataclass
from types import MappingProxyType

CALC, MHQA, WEB = "calc", "mhqa", "web"
FAMILIES = (CALC, MHQA, WEB)
PROFILE_OF = MappingProxyType({CALC: "code", MHQA: "mhqa", WEB: "web"})
MULTI = "multi"
"""The profile that fits every family."""

KINDS = MappingProxyType(
    {
        CALC: ("shop", "coins", "train", "farm"),
        MHQA: ("mayor", "judge", "doctor", "baker"),
        WEB: ("chief", "owner", "sponsor", "captain"),
    }
)
# The three numbers of a sum come in the order in which the program a*b-c names them.
SUMS = MappingProxyType(
    {
        "shop": "A shop gets {} boxes of {} cups and sells {} . How many cups remain ?",
        "coins": "You have {} piles of {} coins and spend {} . How many coins remain ?",
        "train": "A train has {} cars of {} seats and {} are taken . How many seats remain ?",
        "farm": "A farm has {} pens of {} hens and {} run away . How many hens remain ?",
    }
)
BIRTHPLACE = "Who is the {} of the town where {} was born ?"
CURRENT = "Who is the current {} of {} ?"


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum as a story of its kind: `Sum("shop", 12, 3, 14)` is 12 * 3 - 14."""

    kind: str
    a: int
    b: int
    c: int

    @property
    def value(self) -> int:
        return self.a * self.b - self.c

    @property
    def program(self) -> str:
        return f"print( {self.a} * {self.b} - {self.c} )"

    @property
    def question(self) -> str:
        return SUMS[self.kind].format(self.a, self.b, self.c)


@dataclass(frozen=True, slots=True)
class Birthplace:
    """A question with two hops, from a person to the town of birth to the holder of an office:
    `Birthplace("mayor", "Nora Lind")`."""

    kind: str
    person: str

    @property
    def question(self) -> str:
        return BIRTHPLACE.format(self.kind, self.person)


@dataclass(frozen=True, slots=True)
class Current:
    """A question with one search, whose snippet may be older than the page: `Current("owner", "Vexon Labs")`."""

    kind: str
    company: str

    @property
    def question(self) -> str:
        return CURRENT.format(self.kind, self.company)


Puzzle = Sum | Birthplace | Current


def family_of(puzzle: Puzzle) -> str:
    match puzzle:
        case Sum():
            return CALC
        case Birthplace():
            return MHQA
        case Current():
            return WEB


def _pattern(template: str, *groups: str) -> re.Pattern[str]:
    return re.compile(re.escape(template).replace(r"\{\}", "{}").format(*groups))


_NUMBERS = (r"(\d+)",) * 3
_SUMS = tuple((kind, _pattern(text, *_NUMBERS)) for kind, text in SUMS.items())
_BIRTHPLACE = _pattern(BIRTHPLACE, f"({'|'.join(KINDS[MHQA])})", r"(\w+ \w+)")
_CURRENT = _pattern(CURRENT, f"({'|'.join(KINDS[WEB])})", r"(\w+ \w+)")


def read_question(question: str) -> Puzzle | None:
    """The inverse of `.question`; None for a question of any other form."""
    if match := _BIRTHPLACE.fullmatch(question):
        return Birthplace(match[1], match[2])
    if match := _CURRENT.fullmatch(question):
        return Current(match[1], match[2])
    for kind, pattern in _SUMS:
        if match := pattern.fullmatch(question):
            return Sum(kind, int(match[1]), int(match[2]), int(match[3]))
    return None
