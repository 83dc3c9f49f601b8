"""What the documents show is what there is: commands parse, targets and links exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from coa.config import load
from jobs import cli
from jobs.recipe import Recipe

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(path: Path, language: str = "") -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)


def commands() -> Iterator[str]:
    for path in DOCUMENTS:
        for block in blocks(path):
            for line in block.splitlines():
                if line.startswith(("coa ", "make ")):
                    # What follows two blanks says what the command is for.
                    yield re.split(r"\s{2,}|\s\[", line)[0]


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_every_command_in_the_documents_is_one(command: str) -> None:
    program, *words = shlex.split(command)
    if program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        return
    options = cli._parser().parse_args(words)
    load(Recipe, cli.find_recipe(options.recipe) if options.recipe else None, options.overrides)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text()):
        if not target.startswith("http"):
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_exists(path: Path) -> None:
    for name in re.findall(r"`((?:coa|actors|cluster|jobs|tests|docs|scripts)/[\w./-]*)`", path.read_text()):
        assert (ROOT / name).exists(), name
