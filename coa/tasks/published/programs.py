"""Reads rows of programming benchmarks: a problem, and the tests that a program has to pass.

A task's only answer is the JSON text of its tests, as `coa.grading.cases` reads it. LiveCodeBench pickles its hidden
tests; only the opcodes of a pickled string are interpreted here, so that no code can run.
"""

import base64
import json
import pickletools
import zlib
from typing import Any

from coa.grading.cases import EXACT, TIME_LIMIT_S, any_digits, read_tests
from coa.json_object import JsonView
from coa.tasks.published.item import BadRow, Item, Reader, Row, called, text

MAX_TESTS_BYTES = 1 << 28
"""Maximum bytes of one problem's hidden tests, decompressed; a row with more is refused."""
MBPP_LIMIT_S = 10.0
"""Seconds of CPU time; one of MBPP's own solutions needs more than the usual limit."""
SAMPLE_TESTS = "sample_tests"
"""The part of a benchmark whose programs are tested only on the samples in the problem's text."""
READ_STDIN = "Write a complete Python program that reads the input from stdin and prints the answer to stdout."
PASSES = "Write a Python program that passes these tests, among others:"
FILL_IN = "Write a complete Python program that begins with this starter code and fills it in:"

_TEXT_OPCODES = frozenset({"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP"})


def live_code_bench(row: Row) -> Item:
    """Reads LiveCodeBench's own row: `question_content`, `starter_code`, `public_test_cases`, `private_test_cases`,
    `metadata` with the name of the function; or a row of the files published with the paper, whose `answer` holds the
    sample tests alone."""
    if "question_content" not in row:
        truth = _compared_exactly(checked(text(row, "answer")))
        return Item(question=text(row, "question"), answers=(truth,), id=called(row, "id"), part=SAMPLE_TESTS)
    starter = str(row.get("starter_code") or "").rstrip()
    asked = f"{FILL_IN}\n```py\n{starter}\n```" if starter else READ_STDIN
    hidden = text(row, "private_test_cases")
    cases = [
        *_cases(text(row, "public_test_cases"), "public_test_cases"),
        *_cases(hidden if hidden.startswith("[") else unseal(hidden), "private_test_cases"),
    ]
    functional = [case for kind, case in cases if kind == "functional"]
    metadata = _json(text(row, "metadata"), "metadata") if functional else {}
    if functional and not (isinstance(metadata, dict) and metadata.get("func_name")):
        raise BadRow("no `func_name` in `metadata`")
    fed = [case for kind, case in cases if kind != "functional"]
    made = encode_tests(stdin=fed, functional=functional, fn_name=metadata.get("func_name"), compare=EXACT)
    return Item(question=f"{text(row, 'question_content')}\n\n{asked}", answers=(made,), id=called(row, "question_id"))


def _compared_exactly(truth: str) -> str:
    """The tests, with LiveCodeBench's own comparison if they name none."""
    with any_digits():
        return json.dumps({"compare": EXACT} | json.loads(truth))


def code_contests(row: Row) -> Item:
    """Reads {"name": .., "description": .., "public_tests": {"input": [..], "output": [..]}, "private_tests": ..,
    "generated_tests": .., "time_limit": {"seconds": 2, "nanos": 0}}."""
    if "description" not in row:
        return live_code_bench(row)
    cases = [
        {"input": fed, "output": wanted}
        for column in ("public_tests", "private_tests", "generated_tests")
        for fed, wanted in _columns(row.get(column), column)
    ]
    limit = row.get("time_limit")
    contest_s = (limit.get("seconds") or 0) + (limit.get("nanos") or 0) / 1e9 if isinstance(limit, dict) else 0
    seconds = max(contest_s, TIME_LIMIT_S)  # the contest's limit is meant for compiled programs
    return Item(
        question=f"{text(row, 'description')}\n\n{READ_STDIN}",
        answers=(encode_tests(stdin=cases, time_limit_s=seconds),),
        id=called(row, "name"),
    )


def human_eval(row: Row) -> Item:
    """Reads a row of HumanEval, or of EvalPlus in its layout: `prompt`, `test`, `entry_point`, `task_id`."""
    prompt, function = text(row, "prompt"), text(row, "entry_point")
    tests = encode_tests(script=text(row, "test"), setup=prompt, entry_point=function)
    return Item(question=f"{FILL_IN}\n```py\n{prompt}\n```", answers=(tests,), id=called(row, "task_id"))


def mbpp(row: Row) -> Item:
    """Reads a row of MBPP, complete or sanitized: `text` or `prompt`, `test_list` (shown in the question),
    `challenge_test_list`, `test_setup_code` or `test_imports`; EvalPlus adds `test`."""
    shown, hidden = _texts(row, "test_list"), _texts(row, "challenge_test_list")
    setup = _texts(row, "test_setup_code") + _texts(row, "test_imports")
    script = [str(row["test"])] if row.get("test") else shown + hidden
    tests = encode_tests(script=script, setup="\n".join(setup), time_limit_s=MBPP_LIMIT_S)
    wanted = "\n".join(shown)
    question = f"{text(row, 'prompt', 'text')}\n\n{PASSES}\n```py\n{wanted}\n```"
    return Item(question=question, answers=(tests,), id=called(row, "task_id"))


def _texts(row: Row, column: str) -> list[str]:
    """The texts in a column, or its one text; none if it has none."""
    value = row.get(column)
    if value is None or isinstance(value, str):
        return [value] if value else []
    return [str(one) for one in value]


def checked(truth: str) -> str:
    """Returns the text if `coa.grading.cases` can read its tests; otherwise raises BadRow."""
    try:
        read_tests(truth)
    except ValueError as error:
        raise BadRow(str(error)) from error
    return truth


def encode_tests(**tests: object) -> str:
    """The JSON text of tests."""
    return checked(json.dumps(tests))


def unseal(sealed: str, limit: int = MAX_TESTS_BYTES) -> str:
    """Decodes base64 of zlib of a pickled string; raises BadRow for anything else, and for more than `limit` bytes."""
    try:
        inflate = zlib.decompressobj()
        pickled = inflate.decompress(base64.b64decode(sealed, validate=True), limit)
    except (ValueError, zlib.error) as error:
        raise BadRow("`private_test_cases` is neither JSON nor base64 of compressed data") from error
    if inflate.unconsumed_tail:
        raise BadRow(f"`private_test_cases` holds more than {limit} bytes")
    return unpickle_text(pickled)


def unpickle_text(pickled: bytes) -> str:
    """The string in a pickle; raises BadRow for a pickle of anything else. Nothing is imported or called."""
    texts: list[str] = []
    try:
        for opcode, argument, _ in pickletools.genops(pickled):
            if opcode.name in ("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"):
                texts.append(str(argument))
            elif opcode.name not in _TEXT_OPCODES:
                raise BadRow(f"`private_test_cases` pickles more than a text ({opcode.name})")
    except ValueError as error:
        raise BadRow("`private_test_cases` is not a pickle") from error
    if len(texts) != 1:
        raise BadRow("`private_test_cases` is not the pickle of one text")
    return texts[0]


def _json(source: str, column: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"`{column}` is not JSON: {error}") from error


def _cases(source: str, column: str) -> list[tuple[str, dict[str, str]]]:
    """LiveCodeBench's [{"input": .., "output": .., "testtype": "stdin" or "functional"}], each with its kind first."""
    try:
        return [
            (str(case["testtype"]), {"input": str(case["input"]), "output": str(case["output"])})
            for case in _json(source, column)
        ]
    except (TypeError, KeyError) as error:
        raise BadRow(f"`{column}` is not a list of tests with `input`, `output` and `testtype`") from error


def _columns(columns: JsonView | None, column: str) -> list[tuple[str, str]]:
    """{"input": [..], "output": [..]} as pairs; empty if there are none."""
    if columns is None:
        return []
    try:
        fed, wanted = (list(map(str, columns[key])) for key in ("input", "output"))
        return list(zip(fed, wanted, strict=True))
    except (TypeError, KeyError, ValueError) as error:
        raise BadRow(f"`{column}` is not as many inputs as outputs") from error


def within(since: str, until: str, read: Reader) -> Reader:
    """A reader that leaves out rows whose contest was outside the window: within("2024-09-22", "2025-01-04",
    live_code_bench)."""

    def windowed(row: Row) -> Item | None:
        day = str(row.get("contest_date") or since)[: len(since)]
        return read(row) if since <= day <= until else None

    return windowed
