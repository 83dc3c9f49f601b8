"""No regular expression of the product takes more than linear time, whatever text it meets."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

from coa.agent.grammar import TAGS
from tests.support.patterns import ROOT, Found, first_slow, is_slow, patterns_of

PACKAGES = ("coa", "actors", "cluster", "jobs")
_NAMES = {"any_name": "|".join(TAGS), "names": tuple(TAGS), "stops": "|".join(TAGS), "tool": "web_search"}
MADE_OF = {
    "coa/agent/chat_template.py": {"marks": ("<|end|>", "<s>")},
    "coa/agent/grammar.py": _NAMES,
    "coa/agent/lenient.py": _NAMES | {"gap": "[ \t]{0,4}"},
    "coa/demo/questions.py": {"template": "Who is {} of {} ?", "groups": (r"(\d+)", r"(\w+ \w+)")},
    "coa/llm/ask.py": {"parts": ("instructions", "question", "run")},
    "coa/distill/sources/programs.py": {"names": "final_answer|answer"},
    "coa/distill/sources/released.py": _NAMES | {"tag": "think"},
    "coa/tasks/loading.py": _NAMES,
    "coa/teams/play.py": _NAMES,
}
"""Values of the local names in patterns that functions make."""
TRUSTED = {
    r"coa/reporting/curves.py: <metadata>.*?</metadata>\s*": "meets the SVG that matplotlib drew for us",
    'coa/reporting/curves.py: <svg [^>]*viewBox="([^"]+)"[^>]*>': "meets the SVG that matplotlib drew for us",
    "coa/tools/search/dense.py: _FAISS_SOURCE": "meets the first line of an error that faiss made",
}
"""Patterns that may take quadratic time, since nobody who might want that writes the text they meet."""
BAD = {
    r"```[ \t]*(?P<name>py)?[ \t]*\n(.*?)(?:```)?": "fullmatch",
    r"(?s)```(?:json)?\s*(.*?)\s*```": "fullmatch",
    r"(?s).*(?:\b(?:is|are)\b|:)": "sub",
    r"(?s)Final answer:[*_]*(?P<answer>(?:(?!\nFinal).)*)\Z": "search",
    r"(?s)Here are [^\n]*:\n": "search",
    r"\s+$": "search",
    r"(?:ab|a|b)*;": "fullmatch",
}
FINE = {r"\s+\Z": "match", r"a++b": "match", r"<[^<>]*>": "sub", r"\w+": "findall", r"\d{1,9}x": "search"}


@pytest.fixture(scope="module")
def found() -> list[Found]:
    return patterns_of(PACKAGES, MADE_OF)


@pytest.fixture(scope="module")
def apart() -> Iterator[Executor]:
    """A process without other threads, whose CPU time would count too."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        yield process


def test_no_pattern_takes_more_than_linear_time(found: list[Found], apart: Executor) -> None:
    strangers = [one for one in found if one.where not in TRUSTED]
    assert [str(slow) for slow in apart.map(first_slow, strangers) if slow] == []


def test_what_is_trusted_is_there_and_would_be_slow(found: list[Found], apart: Executor) -> None:
    patterns = {one.where: one for one in found}
    assert all(apart.map(first_slow, [patterns[where] for where in TRUSTED]))


@pytest.mark.parametrize(("pattern", "method"), BAD.items())
def test_a_slow_pattern_is_found(pattern: str, method: str, apart: Executor) -> None:
    assert apart.submit(first_slow, Found("here", re.compile(pattern), frozenset({method}))).result()


def test_a_linear_pattern_is_not_called_slow(apart: Executor) -> None:
    fine = (Found("here", re.compile(pattern), frozenset({method})) for pattern, method in FINE.items())
    assert list(apart.map(first_slow, fine)) == [None] * len(FINE)


@pytest.mark.parametrize(("power", "slow"), [(1, False), (2, True)])
def test_a_machine_that_gets_slower_meanwhile_makes_no_pattern_slow(
    power: int, slow: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = Counter[str]()

    def seconds(pattern: Any, method: str, text: str) -> float:
        taken["times"] += 1
        return 2e-4 * (len(text) / 1000) ** power * (1.0 if taken["times"] <= 4 else 2.5)

    monkeypatch.setattr("tests.support.patterns.seconds", seconds)
    assert is_slow(re.compile("x"), "search", "0" * 1000, "0" * 4000) is slow


def test_there_is_one_way_to_a_pattern() -> None:
    """Patterns are found by `re.NAME(`."""
    others = []
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case (
                    ast.ImportFrom(module="re" | "regex") | ast.alias(name="regex") | ast.alias(name="re", asname=str())
                ):
                    others.append(path.name)
    assert others == []
