"""Compares a program's output or return value with the expected one; runs outside of the sandbox."""

import math
import re
from decimal import Decimal, InvalidOperation

TOLERANCE = 1e-6
"""Tolerance of numbers with a fraction, as in programming contests: absolute below 1, relative above."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?")


def same_output(output: str, wanted: str, *, exact: bool = False) -> bool:
    """Whether two outputs are the same line by line and word by word; numbers are compared as numbers.

    exact: as in LiveCodeBench: lines are the same text, or the same numbers, without a tolerance.
    """
    texts = [text.strip().split("\n") if exact else text.strip().splitlines() for text in (output, wanted)]
    same = _same_numbers if exact else _same_words
    return len(texts[0]) == len(texts[1]) and all(
        ours.strip() == theirs.strip() or same(ours.split(), theirs.split())
        for ours, theirs in zip(*texts, strict=True)
    )


def _same_numbers(output: list[str], wanted: list[str]) -> bool:
    numbers = [list(map(_number, words)) for words in (output, wanted)]
    return None not in numbers[0] and numbers[0] == numbers[1]


def _same_words(output: list[str], wanted: list[str]) -> bool:
    return len(output) == len(wanted) and all(map(_same_word, output, wanted))


def _same_word(output: str, wanted: str) -> bool:
    ours, theirs = _number(output), _number(wanted)
    if output == wanted or ours is None or theirs is None:
        return output == wanted
    # A whole number is exact, however it is written.
    return ours == theirs or (re.search("[.eE]", wanted) is not None and _close(ours, theirs))


def _number(word: str) -> Decimal | None:
    """The number that a word is, as programs print numbers. What Python alone reads as one is none: `1_0`, digits of
    other scripts, `nan`."""
    try:
        return Decimal(word) if _NUMBER.fullmatch(word) else None
    except InvalidOperation:  # an exponent of many digits
        return None


def same_value(output: object, wanted: object, *, exact: bool = False) -> bool:
    """Whether two JSON values are the same, numbers with a fraction within the tolerance; exact: without one."""
    if exact:
        return output == wanted
    match output, wanted:
        case [list(), list()]:
            return len(output) == len(wanted) and all(map(same_value, output, wanted))
        case [dict(), dict()]:
            return output.keys() == wanted.keys() and all(same_value(output[key], wanted[key]) for key in wanted)
        case [int() | float() | Decimal(), float()]:  # a whole number is exact
            if math.isnan(wanted):
                return isinstance(output, float) and math.isnan(output)
            return output == wanted or (not isinstance(output, bool) and _close(output, wanted))
    return output == wanted


def _close(output: float | Decimal, wanted: float | Decimal) -> bool:
    """Whether two numbers that differ are within the tolerance; never if one is beyond what a float holds."""
    try:
        ours, theirs = float(output), float(wanted)
    except OverflowError:
        return False
    return math.isfinite(ours) and math.isclose(ours, theirs, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
