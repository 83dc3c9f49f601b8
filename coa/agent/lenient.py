"""Parses a policy's turn and repairs small errors of form; every repair is reported."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from coa.agent.chain_format import OWN, ChainFormat
from coa.agent.grammar import TAGS, Chain, Form, Parsed, parse, parse_with
from coa.tools.code import read_program


class Repair(StrEnum):
    """A small error of form that was understood and repaired."""

    CASE = "a tag in capitals"
    SPACING = "blanks inside a tag"
    FENCE = "a fence that is not named py or sh"


@dataclass(frozen=True, slots=True)
class Reading:
    parsed: Parsed
    repairs: tuple[Repair, ...]


def read(text: str, form: ChainFormat = OWN) -> Reading:
    """Parses strictly. If that finds a fault, parses leniently, and returns that result if it has no fault."""
    parsed = parse(text, form)
    repairs: list[Repair] = []
    if parsed.fault:
        loose = lenient_tag_pattern()
        found = parse_with(loose, text, form)
        if found.fault:
            return Reading(parsed, ())
        marks = [match[0] for match in loose.finditer(text)]
        parsed = found
        if any(mark != mark.lower() for mark in marks):
            repairs.append(Repair.CASE)
        if any(" " in mark or "\t" in mark for mark in marks):
            repairs.append(Repair.SPACING)
    if odd_fence(parsed.chain):
        repairs.append(Repair.FENCE)
    return Reading(parsed, tuple(repairs))


def odd_fence(chain: Chain) -> bool:
    """Whether a program is in a code fence with another name than the prompt asks for, such as ```python."""
    return any(read_program(span.text).odd for span in chain if TAGS[span.tag].form is Form.PROGRAM)


def lenient_tag_pattern() -> re.Pattern[str]:
    """Tags with small errors of form: capitals, and blanks inside of the brackets."""
    return _loose(tuple(TAGS))


@cache
def _loose(names: tuple[str, ...]) -> re.Pattern[str]:
    # At most a few blanks: without a bound, matching a long run of blanks would take quadratic time.
    gap = "[ \t]{0,4}"
    return re.compile(rf"<{gap}(/?){gap}({'|'.join(names)}){gap}>", re.IGNORECASE | re.ASCII)
