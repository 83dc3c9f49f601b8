"""The tool `code`: runs the body of the tag as a Python program, whose output is the observation."""

import re
from dataclasses import dataclass, field

from coa.tools.base import ToolCall
from coa.tools.layouts import LAYOUTS, Output
from coa.tools.sandbox.sandbox import Sandbox

_FENCED = re.compile(
    r"```[ \t]*+(?:(?P<name>py|python3?)[ \t]*)?\n(?P<source>.*?)"
    r"(?:```(?:\s*```[ \t]*(?P<input>sh|bash)[ \t]*\n(?P<stdin>.*?)(?:```)?)?)?",
    re.DOTALL | re.IGNORECASE,
)
_EMPTY = Output(None, "", "the call is empty: it should hold a Python program")


@dataclass(frozen=True, slots=True)
class Program:
    """A program and its standard input."""

    source: str
    stdin: str = ""
    odd: bool = field(default=False, compare=False)
    """Whether a fence has another language than the prompt asks for, such as ```python."""


def read_program(argument: str) -> Program:
    """Reads a bare program, or a fenced one (```py), which a second fence (```sh) may follow with its standard input.

    The last fence may be left open.
    """
    text = argument.replace("\r\n", "\n")
    if match := _FENCED.fullmatch(text.strip()):
        odd = match["name"] not in (None, "py") or match["input"] not in (None, "sh")
        return Program(match["source"], match["stdin"] or "", odd)
    return Program(text)


class CodeTool:
    """Runs each call's program in the sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def key(self, call: ToolCall) -> None:
        """None: a program may look at the clock or draw at random, so it runs each time."""

    async def __call__(self, call: ToolCall) -> str:
        program = read_program(call.argument)
        if not program.source.strip():
            return LAYOUTS[call.layout].output(_EMPTY)
        return await self._sandbox.run(program.source, program.stdin, call.layout)

    async def close(self) -> None:
        await self._sandbox.close()
