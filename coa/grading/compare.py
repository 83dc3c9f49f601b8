"""Compares what a program printed or returned with what its tests want; runs outside of the sandbox."""

import math
import re
from decimal import Decimal, InvalidOperation
from typing import Any

TOLERANCE = 1e-6
"""Tolerance of numbers with a fraction, as in programming contests: absolute below 1, relative above."""


def same_output(output: str, wanted: str) -> bool:
    """Whether two outputs are the same line by line and word by word; numbers are compared as numbers."""
    ours, theirs = _lines(output), _lines(wanted)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


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


def same_value(output: Any, wanted: Any) -> bool:
    """Whether two JSON values are the same, numbers within the tolerance."""
    match output, wanted:
        case [list(), list()]:
            return len(output) == len(wanted) and all(map(same_value, output, wanted))
        case [dict(), dict()]:
            return output.keys() == wanted.keys() and all(same_value(output[key], wanted[key]) for key in wanted)
        case [float(), int() | float()] | [int(), float()]:
            return output == wanted or _close(output, wanted)
    return output == wanted


def _close(output: float, wanted: float) -> bool:
    try:
        return math.isclose(output, wanted, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except OverflowError:  # a whole number beyond what a float holds
        return False
