r"""Finds the programs in an answer: the texts between fences of three backticks.

    fenced("First\n```py\nprint(1)\n```\nwhich prints\n```\n1\n```") == [Block("py", "print(1)\n"), Block("", "1\n")]

A fence inside a multi-line string is part of the program. The text is read once, line by line.
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
    """The word after the opening fence, in lower case."""
    text: str


def fenced(answer: str) -> list[Block]:
    """All fenced texts; a text that is not closed ends with the answer."""
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
    """The lines up to the closing fence, and the number of the line after it.

    The closing fence is the first at the end of a line that is in no string and no comment. If there is none, because
    a multi-line string is never closed, it is the first fence in that string.
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
    """Returns the text before a fence at the end of the line (None without a fence), the quotes of the multi-line
    string that is open after the line, and whether the fence is in a string. string: the quotes of the multi-line
    string that is open before the line."""
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

    A fence that names Python is preferred to one without a language, and of those without, one that looks like a
    program to others, since a program is often followed by an example of its output.
    """
    blocks = fenced(answer)
    named = [block.text for block in blocks if block.language in _PYTHON]
    bare = [block.text for block in blocks if not block.language]
    like = [text for text in bare if _LIKE_A_PROGRAM.search(text)]
    return next((texts[-1] for texts in (named, like, bare) if texts), answer)
