r"""Reads the tag text of the published AFM sets into chains.

    \n<think>\n...\n</think>\n\n<web_search>\n...\n</web_search>\n\n<observation>\n...\n</observation>\n\n\n<answer>...

Tags are on lines of their own, with blank lines between spans, and nothing is escaped, so a tool result may contain
tags too. An observation therefore ends at the first closing tag before a new tag or the end; any other span ends at its
closing tag, and contains no tag that begins or ends a span.
"""

import re
from dataclasses import dataclass
from functools import cache

from coa.agent.grammar import ANSWER, OBSERVATION, TAGS, THINK, Chain, Fault, Span

NO_ANSWER = "no answer at the end"
NO_TAGS = "no tags"


class Unreadable(Exception):
    """A row of a released file makes no demonstration; the text says why."""


@dataclass(frozen=True, slots=True)
class _Patterns:
    mark: re.Pattern[str]
    end_of_observation: re.Pattern[str]


@cache
def _patterns(names: tuple[str, ...]) -> _Patterns:
    any_name = "|".join(names)
    return _Patterns(
        mark=re.compile(rf"<(/?)({any_name})>"),
        end_of_observation=re.compile(rf"</{OBSERVATION}>(?=\s*(?:<(?:{any_name})>|\Z))"),
    )


def is_tagged(text: object) -> bool:
    """Whether a text is meant as tag text, though it may have faults: it begins with one of our tags, after thinking,
    or has an answer in its tag. A thought before plain text, as reasoning models write it, makes no tag text."""
    if not isinstance(text, str):
        return False
    _, closed, rest = text.rpartition(f"</{THINK}>")
    mark = _patterns(tuple(TAGS)).mark.match((rest if closed else text).lstrip())
    return f"<{ANSWER}>" in text or (mark is not None and (mark[2] != THINK or not closed))


def read_chain(text: str) -> Chain:
    """The chain of a text; raises Unreadable for a malformed text, and if it does not end in an answer."""
    patterns = _patterns(tuple(TAGS))
    spans: list[Span] = []
    at = 0
    while text[at:].strip():
        mark = patterns.mark.search(text, at)
        if mark is None or text[at : mark.start()].strip():
            raise Unreadable(Fault.STRAY_TEXT if spans or mark else NO_TAGS)
        if mark[1]:
            raise Unreadable(Fault.STRAY_CLOSE)
        body, at = _body(text, mark.end(), mark[2], patterns)
        spans.append(Span(mark[2], body.strip()))
    if not spans:
        raise Unreadable(NO_TAGS)
    if spans[-1].tag != ANSWER:
        raise Unreadable(NO_ANSWER)
    return tuple(spans)


def _body(text: str, begin: int, tag: str, patterns: _Patterns) -> tuple[str, int]:
    """(the text between a tag and its end, the position after it)."""
    closing = patterns.end_of_observation if tag == OBSERVATION else re.compile(rf"</{tag}>")
    end = closing.search(text, begin)
    if end is None:
        raise Unreadable(Fault.UNCLOSED)
    body = text[begin : end.start()]
    if tag != OBSERVATION and _holds_a_span(body, tag, patterns):
        raise Unreadable(Fault.NESTED)
    return body, end.end()


def _holds_a_span(body: str, tag: str, patterns: _Patterns) -> bool:
    """Whether a body contains a tag alone on its line, a whole span, or its own tag; any other tag within a line is
    text."""
    opened = {tag}
    for mark in patterns.mark.finditer(body):
        closing, name = mark.groups()
        before, after = body[: mark.start()].rpartition("\n"), body[mark.end() :].partition("\n")
        alone = bool(before[1]) and not before[2].strip() and not after[0].strip()
        if alone or name == tag or (closing and name in opened):
            return True
        opened.add(name)
    return False
