"""Layouts: how the results of tools are written into an observation.

A policy that was trained on one layout generalises badly to others (paper, section 5.2), so a run may train on several:
`agent.layouts` names them, and a task always gets the same one.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coa.registry import Registry
from coa.seeds import derive
from coa.tools.base import PLAIN

NO_RESULT = "no result"
EMPTY_QUERY = "the query is empty"


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a corpus: `Passage("Arden", "Arden : mayor Berg .", 7.1)`"""

    title: str
    text: str
    score: float = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """A search result: `Hit("Vexon Labs", "p123", "Berg as owner")`"""

    title: str
    link: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Output:
    """The result of a program: its status (0 is success), its output, and its failure in words."""

    status: int | None
    printed: str
    failure: str = ""


class Layout(Protocol):
    """Writes each kind of result as the text of an observation."""

    def passages(self, found: Sequence[Passage]) -> str: ...

    def hits(self, found: Sequence[Hit], max_chars: int) -> str: ...

    def page(self, url: str, text: str) -> str: ...

    def output(self, output: Output) -> str: ...


class Plain:
    """Writes as little as possible: a line per hit, a program's output as it is."""

    def passages(self, found: Sequence[Passage]) -> str:
        return "\n".join(passage.text for passage in found) or NO_RESULT

    def hits(self, found: Sequence[Hit], max_chars: int) -> str:
        lines = "\n".join(_one_line(f"{hit.title} {hit.link} {hit.snippet}") for hit in found)
        return (lines or NO_RESULT)[:max_chars]

    def page(self, url: str, text: str) -> str:
        return text or "an empty page"

    def output(self, output: Output) -> str:
        return "\n".join(part for part in (output.printed, output.failure) if part) or "no output"


class Numbered:
    """Writes headings and numbers, like the observations that the published agents were trained on (paper, appendix;
    its released tool servers)."""

    def passages(self, found: Sequence[Passage]) -> str:
        numbered = (f"Doc {i} (Title: {passage.title}) {passage.text}" for i, passage in enumerate(found, start=1))
        return "\n\n".join(numbered) or NO_RESULT

    def hits(self, found: Sequence[Hit], max_chars: int) -> str:
        if not found:
            return NO_RESULT[:max_chars]
        lines = [f"{len(found)} results"]
        for i, hit in enumerate(found, start=1):
            lines.append(f"{i}. [{_one_line(hit.title)}]({hit.link}) {_one_line(hit.snippet)}")
        return "\n".join(lines)[:max_chars]

    def page(self, url: str, text: str) -> str:
        return f"Page [{url}] Summary: {text or 'an empty page'}"

    def output(self, output: Output) -> str:
        head = f"[{'FAILED' if output.failure else 'EXECUTED'}] status {output.status}"
        blocks = (("STDOUT", output.printed), ("STDERR", output.failure))
        return "\n".join((head, *(f"[{name}:BEGIN] {text} [{name}:END]" for name, text in blocks if text)))


class AsJson:
    """Writes a JSON value; several pages of a call are one value each, with a blank line between them. Errors in the
    call itself ("the query is empty") are plain text here too."""

    def passages(self, found: Sequence[Passage]) -> str:
        return _json([{"title": passage.title, "text": passage.text} for passage in found])

    def hits(self, found: Sequence[Hit], max_chars: int) -> str:
        """Valid JSON of at most `max_chars`, at least `[]`: text that does not fit is dropped from the end."""
        kept = list(found)
        while (over := len(text := _hits_as_json(kept)) - max_chars) > 0 and kept:
            last = kept.pop()
            if over < len(last.snippet):  # each character of the snippet takes at least one of the JSON text
                kept.append(replace(last, snippet=last.snippet[:-over]))
        return text

    def page(self, url: str, text: str) -> str:
        return _json({"url": url, "text": text})

    def output(self, output: Output) -> str:
        return _json({"status": output.status, "stdout": output.printed, "error": output.failure})


LAYOUTS: Registry[Layout] = Registry("layout", {PLAIN: Plain(), "numbered": Numbered(), "json": AsJson()})


def layout_of(task_id: str, layouts: Sequence[str]) -> str:
    """The layout of results in this task, always the same one."""
    return layouts[derive("layout", task_id) % len(layouts)]


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _hits_as_json(found: Sequence[Hit]) -> str:
    return _json([{"title": hit.title, "link": hit.link, "snippet": hit.snippet} for hit in found])


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
