"""Compares a program's output or return value with the expected one; runs outside of the sandbox."""

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

TOLERANCE = 1e-6
"""Tolerance of numbers with a fraction, as in programming contests: absolute below 1, relative above."""


def same_output(output: str, wanted: str, *, exact: bool = False) -> bool:
    """Whether two outputs are the same line by line and word by word; numbers are compared as numbers.

    exact: as in LiveCodeBench: lines are the same text, or the same numbers, without a tolerance.
    """
    if exact:
        texts = [[line.strip() for line in text.strip().split("\n")] for text in (output, wanted)]
        return len(texts[0]) == len(texts[1]) and all(map(_same_text, *texts))
    ours, theirs = _lines(output), _lines(wanted)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def _same_text(output: str, wanted: str) -> bool:
    if output == wanted:
        return True
    try:
        return [Decimal(word) for word in output.split()] == [Decimal(word) for word in wanted.split()]
    except InvalidOperation:
        return False


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def _same_line(output: list[str], wanted: list[str]) -> bool:
    return output == wanted or (len(output) == len(wanted) and all(map(_same_word, output, wanted)))


def _same_word(output: str, wanted: str) -> bool:
    if output == wanted:
        return True
    try:
        ours, theirs = Decimal(output), Decimal(wanted)
    except InvalidOperation:
        return False
    if not (ours.is_finite() and theirs.is_finite()):
        return False
    # A whole number is exact, however it is written.
    whole = not re.search("[.eE]", wanted)
    return ours == theirs or (not whole and _close(float(ours), float(theirs)))


def same_value(output: Any, wanted: Any, *, exact: bool = False) -> bool:
    """Whether two JSON values are the same, numbers with a fraction within the tolerance; exact: without one."""
    if exact:
        return output == wanted
    match output, wanted:
        case [list(), list()]:
            return len(output) == len(wanted) and all(map(same_value, output, wanted))
        case [dict(), dict()]:
            return output.keys() == wanted.keys() and all(same_value(output[key], wanted[key]) for key in wanted)
        case [int() | float(), float()]:  # a whole number is exact
            return output == wanted or (not isinstance(output, bool) and _close(output, wanted))
    return output == wanted


def _close(output: float, wanted: float) -> bool:
    try:
        return math.isclose(output, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # a whole number beyond what a float holds
        return False
