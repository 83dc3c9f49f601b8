r"""Finds the programs in an answer: what stands between fences of three backticks, each on a line of its own.

    fenced("First\n```py\nprint(1)\n```\nwhich prints\n```\n1\n```") == [Block("py", "print(1)\n"), Block("", "1\n")]

A fence inside of a string of several lines is part of the program. The text is read once, line by line.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_FENCE = "```"
_TOKEN = re.compile(r"""\\.|\"\"\"|'''|"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|#|```""", re.DOTALL)
_LIKE_A_PROGRAM = re.compile(
    r"^[ \t]*+(?:(?:def|class|import|from|for|while|if|try|with|print|return)\b|\w++[ \t]*+=)", re.MULTILINE
)
_PYTHON = ("py", "python", "python3")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced text."""

    language: str
    """What stands behind the opening fence, in lower case."""
    text: str


def fenced(answer: str) -> list[Block]:
    """All fenced texts; one that is not closed ends with the answer."""
    lines = answer.splitlines(keepends=True)
    found: list[Block] = []
    at = 0
    while at < len(lines):
        opening = lines[at].strip()
        at += 1
        if not opening.startswith(_FENCE) or _FENCE in opening[3:]:
            continue
        body, at = _body(lines, at)
        found.append(Block(opening[3:].strip().lower(), textwrap.dedent("".join(body))))
    return found


def _body(lines: Sequence[str], begin: int) -> tuple[list[str], int]:
    """The lines up to the closing fence, and the number of the line behind it.

    The fence is the first at the end of a line that is in no string and no comment; where a string of several lines is
    never closed, the first in it.
    """
    string: str | None = None
    inside: tuple[list[str], int] | None = None
    for at in range(begin, len(lines)):
        before, string, was_inside = _read(lines[at], string)
        if before is not None:
            here = ([*lines[begin:at], before] if before.strip() else list(lines[begin:at]), at + 1)
            if not was_inside:
                return here
            inside = inside or here
    return inside or (list(lines[begin:]), len(lines))


def _read(line: str, string: str | None) -> tuple[str | None, str | None, bool]:
    """What stands before the fence at the end of a line (None without one), the quotes of the string of several lines
    that is open behind it, and whether the fence is inside of that. string: the quotes of one that is open before."""
    end = len(line.rstrip())
    for token in _TOKEN.finditer(line):
        if token[0] == _FENCE and token.end() == end:
            return line[: token.start()], string, string is not None
        if string is not None:
            string = None if token[0] == string else string
        elif token[0][0] == "#":
            break
        elif token[0] in ('"""', "'''"):
            string = token[0]
    return None, string, False


def program_of(answer: str) -> str:
    """The last fenced program of an answer, or else the whole answer.

    A fence that names Python goes before one that names nothing, and of these one that looks like a program before
    others: behind a program there often is an example of what it prints.
    """
    blocks = fenced(answer)
    named = [block.text for block in blocks if block.language in _PYTHON]
    bare = [block.text for block in blocks if not block.language]
    like = [text for text in bare if _LIKE_A_PROGRAM.search(text)]
    return next((texts[-1] for texts in (named, like, bare) if texts), answer)
