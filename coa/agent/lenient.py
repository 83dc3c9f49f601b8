"""Reads a policy's turn and forgives small errors of form, which are told and never silent."""

import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from coa.agent.grammar import TAGS, Chain, Form, Parsed, parse, parse_with
from coa.tools.code import read_program


class Repair(StrEnum):
    """What was not as it should be, and was understood all the same."""

    CASE = "a tag in capitals"
    SPACING = "blanks inside a tag"
    FENCE = "a fence that is not named py or sh"


@dataclass(frozen=True, slots=True)
class Reading:
    parsed: Parsed
    repairs: tuple[Repair, ...]


def read(text: str) -> Reading:
    """The strict reading; where that has a fault, a forgiving one, if that has none."""
    parsed = parse(text)
    repairs: list[Repair] = []
    if parsed.fault:
        loose = _loose(tuple(TAGS))
        found = parse_with(loose, text)
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
    """Whether a program stands in a fence of another name than the prompt asks for, such as ```python."""
    return any(read_program(span.text).odd for span in chain if TAGS[span.tag].form is Form.PROGRAM)


@cache
def _loose(names: tuple[str, ...]) -> re.Pattern[str]:
    # A few blanks only: without a bound, a long run of blanks would be read over and over.
    gap = "[ \t]{0,4}"
    return re.compile(rf"<{gap}(/?){gap}({'|'.join(names)}){gap}>", re.IGNORECASE | re.ASCII)
