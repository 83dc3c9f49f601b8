"""The code tool: how a call is read, and how a result is written."""

import asyncio
import json
import shutil
import time
from collections.abc import Iterator

import pytest

from coa.tools.base import ToolCall
from coa.tools.code import CodeTool, Program, read_program
from coa.tools.sandbox.sandbox import SOURCE_BYTES, Sandbox
from tests.support.sandboxes import QUICK

needs_bubblewrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def tool(loop: asyncio.Runner) -> Iterator[CodeTool]:
    made = CodeTool(Sandbox(QUICK))
    yield made
    loop.run(made.close())


FORMS = {
    "print(1)": Program("print(1)"),
    "if 1:\r\n  print(1)": Program("if 1:\n  print(1)"),
    "  print(1)": Program("  print(1)"),
    "```py\nprint(1)\n```": Program("print(1)\n"),
    "```\nprint(1)\n```": Program("print(1)\n"),
    "\n ```python\nprint(1)\n``` \n": Program("print(1)\n"),
    "``` Python  \r\nprint(1)\r\n```\r\n": Program("print(1)\n"),
    "```PY\nprint(1)```": Program("print(1)"),
    "```py\nprint(1)": Program("print(1)"),
    "```py\n": Program("```py\n"),
    "```py\nprint(input())\n```\n```sh\n4 2\n```": Program("print(input())\n", "4 2\n"),
    "```py\nprint(input())\n```\n\n  ```Bash\n4\n2": Program("print(input())\n", "4\n2"),
    "```py\nprint(input())``````sh\n4 2```": Program("print(input())", "4 2"),
    "```py\nprint(input())\n````\n```sh\n4 2\n````": Program("print(input())\n", "4 2\n"),
    '```py\nx = """\n```sh\n```\n"""\n```': Program('x = """\n```sh\n```\n"""\n'),
}


@pytest.mark.parametrize("argument", FORMS)
def test_programs_come_in_many_forms(argument: str) -> None:
    assert read_program(argument) == FORMS[argument]


def test_long_calls_are_read_in_no_time() -> None:
    started = time.process_time()
    for argument in ("```py\n" + "```sh\n" * 100_000 + "x", "```py\n" + "``` \n" * 100_000, "`" * 1_000_000):
        read_program(argument)
    assert time.process_time() - started < 20


@needs_bubblewrap
def test_the_code_tool_runs_what_the_call_holds(tool: CodeTool, loop: asyncio.Runner) -> None:
    assert loop.run(tool(ToolCall("code", "```py\nprint(input() + '!')\n```\n```sh\nhi\n```"))) == "hi!"
    assert loop.run(tool(ToolCall("code", "x = 1"))) == "no output"


@needs_bubblewrap
def test_results_are_written_in_the_layout_of_the_call(tool: CodeTool, loop: asyncio.Runner) -> None:
    program = "print('a\\nb'); 1 / 0"
    assert loop.run(tool(ToolCall("code", program))) == "a\nb\nZeroDivisionError: division by zero"
    assert json.loads(loop.run(tool(ToolCall("code", program, layout="json")))) == {
        "status": 1,
        "stdout": "a\nb",
        "error": "ZeroDivisionError: division by zero",
    }


@pytest.mark.parametrize("argument", ["", " \n", "```py\n```", "```py\n \n```\n```sh\n1\n```"])
def test_an_empty_call_is_told_so(argument: str, tool: CodeTool, loop: asyncio.Runner) -> None:
    assert loop.run(tool(ToolCall("code", argument))) == "the call is empty: it should hold a Python program"


@needs_bubblewrap
@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("print(1)\0", "null bytes"),
        ("print('\ud800')", "SyntaxError: Non-UTF-8 code"),
        ("```py\nprint(input())\n```\n```sh\n\ud800\n```", "\ufffd"),
        ("#" * 10_000_000, f"longer than {SOURCE_BYTES} bytes"),
        ("print('" + "(" * 500_000 + "')", "[495905 bytes left out]"),
    ],
)
def test_what_is_no_program_is_told_so(argument: str, message: str, tool: CodeTool, loop: asyncio.Runner) -> None:
    assert message in loop.run(tool(ToolCall("code", argument)))


def test_a_program_runs_each_time(tool: CodeTool) -> None:
    assert tool.key(ToolCall("code", "print(1)")) is None
