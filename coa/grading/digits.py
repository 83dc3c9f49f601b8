"""Whole numbers of any length, in the tests of programs and in what programs return.

Python neither reads nor writes a whole number of more than 4,300 digits, since the time grows with their square.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from threading import RLock

MOST_DIGITS = 4300
_LOCK = RLock()


@contextmanager
def any_digits() -> Iterator[None]:
    """Lifts the limit, for texts of a user. Within it, no other task can run: it must not await."""
    with _LOCK:
        before = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(0)
        try:
            yield
        finally:
            sys.set_int_max_str_digits(before)


def read_json(text: str) -> object:
    """The JSON value in a text that a program wrote. A whole number beyond the limit is a `Decimal`, which is read in
    linear time; other numbers are as usual."""
    return json.loads(text, parse_int=lambda digits: (int if len(digits) <= MOST_DIGITS else Decimal)(digits))
