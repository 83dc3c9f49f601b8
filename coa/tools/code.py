"""The code tool: the body of a `code` tag is a program, what it prints is the observation."""

import re
from dataclasses import dataclass

from coa.tools.sandbox import Sandbox

_FENCED = re.compile(r"```(?:py|python)?[ \t]*\n(.*?)```(?:\s*```sh[ \t]*\n(.*?)```)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Program:
    source: str
    stdin: str = ""


def read_program(argument: str) -> Program:
    """A bare program, or a fenced one (```py), which a second fence (```sh) may follow with its standard input."""
    if match := _FENCED.fullmatch(argument.strip()):
        return Program(match[1], match[2] or "")
    return Program(argument)


class CodeTool:
    cacheable = False
    """A program may look at the clock or draw at random."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def __call__(self, argument: str) -> str:
        program = read_program(argument)
        return await self._sandbox.run(program.source, program.stdin)
