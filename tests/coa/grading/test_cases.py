"""Whole numbers that are longer than Python reads by default, in tests and in what programs print and return."""

import json
import sys

import pytest

from coa.grading.cases import Call, Feed, any_digits, read_case, read_json, read_tests, write_case
from coa.grading.programs import judge_run, same_output, same_value, stdin_of
from coa.tools.sandbox.run import Ended

NUMBER = 7 * 10**5000 + 1
DIGITS = "7" + "0" * 4999 + "1"
MARK = "\x1e"


@pytest.mark.parametrize(
    "tests",
    [
        {"functional": [{"input": "10", "output": DIGITS}], "fn_name": "f"},
        {"assertions": f"assert f(10) == {DIGITS}"},
        {"inputs": [[10]], "outputs": [NUMBER], "fn_name": "f"},
    ],
)
def test_tests_may_have_long_numbers(tests: dict[str, object]) -> None:
    before = sys.get_int_max_str_digits()
    with any_digits():
        text = json.dumps(tests)
    assert read_tests(text).cases == (Call("f", (10,), {}, (NUMBER,)),)
    assert sys.get_int_max_str_digits() == before


@pytest.mark.parametrize("case", [Feed(DIGITS, "1"), Call("f", (NUMBER,), {"n": [NUMBER]}, (NUMBER, "x"))])
def test_a_test_is_written_and_read(case: Feed | Call) -> None:
    assert read_case(write_case(case)) == case


def test_what_a_program_returns_is_compared_digit_by_digit() -> None:
    case = Call("f", (NUMBER,), {}, (NUMBER,))
    assert DIGITS in stdin_of(case)
    assert judge_run(Ended(0, f"{MARK}{DIGITS}\n", ""), case) == (None, "")
    why, detail = judge_run(Ended(0, f"{MARK}{DIGITS[:-1]}2\n", ""), case)
    assert (why, len(detail) < 500) == ("wrong", True)


def test_a_number_of_a_program_is_read_in_linear_time() -> None:
    assert read_json("9" * 2_000_000) != 9  # as an int it would take half a minute
    assert not same_value(read_json(f"[{DIGITS}]"), [1.5])
    assert same_value(read_json(f"[{DIGITS}]"), [NUMBER], exact=True)


@pytest.mark.parametrize(
    ("output", "wanted", "same"),
    [
        (DIGITS, DIGITS + "\n", True),
        (DIGITS, DIGITS[:-1] + "2", False),
        ("2e400", "1e400", False),
        ("1.0e400", "1e400", True),
    ],
)
def test_printed_numbers_beyond_what_a_float_holds_are_exact(output: str, wanted: str, same: bool) -> None:
    assert same_output(output, wanted) is same


def test_a_value_that_is_no_number_equals_itself() -> None:
    nan = float("nan")
    assert same_value(nan, nan)
    assert not same_value(1.0, nan)
    assert not same_value(NUMBER, nan)
    assert not same_value(nan, 1.0)
