"""The tool `code`: runs the body of the tag as a Python program, whose output is the observation."""

import re
import textwrap
from dataclasses import dataclass, field

from coa.tools.base import ToolCall
from coa.tools.fences import is_python, language_of
from coa.tools.layouts import LAYOUTS, Output
from coa.tools.sandbox.sandbox import Sandbox

_FENCED = re.compile(
    r"(?P<fence>`{3,}+|~{3,}+)(?P<info>[^`~\n]*+)\n(?P<source>.*?)"
    r"(?:(?<![`~])(?P=fence)(?:[`~]*+(?!\S))?"
    r"(?:\s*+(?P<second>`{3,}+|~{3,}+)[ \t]*+(?P<input>sh|bash|shell|stdin|input)[ \t]*+\n"
    r"(?P<stdin>.*?)(?:(?<![`~])(?P=second)[`~]*+)?)?)?",
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
    """Reads a bare program, or one in a Markdown fence (```py), which a second fence (```sh) may follow with its
    standard input.

    The last fence may be left open.
    """
    text = argument.replace("\r\n", "\n")
    match = _FENCED.fullmatch(text.strip())
    if match is None or not is_python(language_of(match["info"]) or "py"):
        return Program(text)
    source = textwrap.dedent(match["source"]) if match["source"][:1] in (" ", "\t") else match["source"]
    odd = match["info"].strip() not in ("", "py") or match["input"] not in (None, "sh") or match["fence"] != "```"
    return Program(source, match["stdin"] or "", odd)


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
