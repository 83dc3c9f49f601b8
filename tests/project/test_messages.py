"""The lines that the documents explain are lines that the product says."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project.test_docs import DOCUMENTS
from tests.project.test_repository import PACKAGES, sources

SPEAKS = re.compile(
    r"(Error|Down|BadRow|NoEngine|NothingLearnt|DiskFull|ReadOnlyDisk)\(|caution|remarks|\b_?say\("
    r"|def (mistake|describe|news|of_updates)"
)
VARIES = "…"
TABLE = re.compile(r"^\| line \| what to do \|\n\|---\|---\|\n((?:\|.*\n)+)", re.MULTILINE)
LINE = re.compile(r"^\| (`+)(.*?)\1 \|", re.MULTILINE)


def explained(path: Path) -> Iterator[str]:
    for rows in TABLE.findall(path.read_text()):
        yield from (message for _, message in LINE.findall(rows))


MESSAGES = sorted({message for path in DOCUMENTS for message in explained(path)})


def said(source: str) -> Iterator[str]:
    """Every text of a module, with a mark in place of what is filled in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else VARIES for part in node.values)


@pytest.fixture(scope="module")
def texts() -> set[str]:
    """The lines that modules with errors and cautions hold."""
    speaking = (text for path in sources(*PACKAGES) if SPEAKS.search(text := path.read_text()))
    return {line for source in speaking for line in said(source) if " " in line and "\n" not in line}


def is_said(message: str, texts: set[str]) -> bool:
    parts = message.split(VARIES)
    asked = re.compile(".*?".join(map(re.escape, parts)))
    longest = max(parts, key=len)
    return any(longest in text and asked.search(text) for text in texts)


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 30


@pytest.mark.parametrize("message", MESSAGES)
def test_a_line_that_is_explained_is_said(message: str, texts: set[str]) -> None:
    assert len(message.replace(VARIES, "").strip()) >= 8
    assert is_said(message, texts)
