r"""Finds the programs in an answer: the texts between Markdown fences, of three or more backticks or tildes.

    fenced("First\n```py\nprint(1)\n```\nwhich prints\n~~~\n1\n~~~") == [Block("py", "print(1)\n"), Block("", "1\n")]

A fence inside a multi-line string is part of the program. The text is read once, line by line.
"""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

_OPENING = re.compile(r"\s*+(?P<fence>`{3,}+|~{3,}+)(?P<info>[^`~\n]*+)\s*+")
_LANGUAGE = re.compile(r"[ \t{.]*+([^\s,:;={}]*+)")
_PYTHON = re.compile(r"i?py(?:thon)?[0-9.]*+")
_TOKEN = re.compile(r"""\\.|\"\"\"|'''|"(?:[^"\\\n]|\\.)*+"|'(?:[^'\\\n]|\\.)*+'|#|`{3,}+|~{3,}+""", re.DOTALL)
_LIKE_A_PROGRAM = re.compile(
    r"^[ \t]*+(?:(?:def|class|import|from|for|while|if|try|with|print|return)\b|\w++[ \t]*+=)", re.MULTILINE
)


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
        opening = _OPENING.fullmatch(lines[at])
        at += 1
        if opening is None:
            continue
        body, at = _body(lines, at, opening["fence"])
        found.append(Block(language_of(opening["info"]), textwrap.dedent("".join(body))))
    return found


def language_of(info: str) -> str:
    """The language that the text after an opening fence names, in lower case; "" if it names none.

    language_of("{.Python .numberLines}") == language_of("python title=a.py") == "python"
    """
    match = _LANGUAGE.match(info)
    return match[1].lower() if match else ""


def is_python(language: str) -> bool:
    """Whether a fence's language is Python: "py", "python3", "ipython"."""
    return _PYTHON.fullmatch(language) is not None


def unfenced(text: str) -> str:
    """The text between the fences of a text that is fenced as a whole; any other text unchanged."""
    lines = text.strip().splitlines(keepends=True)
    opening = _OPENING.fullmatch(lines[0]) if lines else None
    if opening is None:
        return text
    body, _ = _body(lines, 1, opening["fence"])
    return "".join(body)


def _closes(token: str, fence: str) -> bool:
    return token[0] == fence[0] and len(token) >= len(fence)


def _body(lines: Sequence[str], begin: int, fence: str) -> tuple[list[str], int]:
    """The lines up to the closing fence, and the number of the line after it.

    The closing fence is the first at the end of a line that is in no string and no comment. If there is none, because
    a multi-line string is never closed, it is the first fence in that string.
    """
    string: str | None = None
    inside: tuple[list[str], int] | None = None
    for at in range(begin, len(lines)):
        before, string, was_inside = _read(lines[at], string, fence)
        if before is not None:
            here = ([*lines[begin:at], before] if before.strip() else list(lines[begin:at]), at + 1)
            if not was_inside:
                return here
            inside = inside or here
    return inside or (list(lines[begin:]), len(lines))


def _read(line: str, string: str | None, fence: str) -> tuple[str | None, str | None, bool]:
    """Returns the text before a closing fence at the end of the line (None without one), the quotes of the multi-line
    string that is open after the line, and whether the fence is in a string. string: the quotes of the multi-line
    string that is open before the line."""
    end = len(line.rstrip())
    for token in _TOKEN.finditer(line):
        if _closes(token[0], fence) and token.end() == end:
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
    named = [block.text for block in blocks if is_python(block.language)]
    bare = [block.text for block in blocks if not block.language]
    like = [text for text in bare if _LIKE_A_PROGRAM.search(text)]
    return next((texts[-1] for texts in (named, like, bare) if texts), answer)
