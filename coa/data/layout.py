r"""Tag text as the published AFM sets have it, read into chains of ours.

    \n<think>\n...\n</think>\n\n<web_search>\n...\n</web_search>\n\n<observation>\n...\n</observation>\n\n\n<answer>...

Tags stand on lines of their own, blank lines lie between spans, and nothing is escaped: what a tool returned may hold
anything, tags too. So an observation goes to the first closing tag that a new tag, or the end, follows; any other span
goes to its closing tag, and holds no tag that begins or ends a span.
"""

import re
from dataclasses import dataclass
from functools import cache

from coa.grammar import ANSWER, OBSERVATION, TAGS, Chain, Fault, Span

NO_ANSWER = "no answer at the end"
NO_TAGS = "no tags"


class Unreadable(Exception):
    """Why a row of a released file makes no demonstration."""


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


def read_chain(text: str) -> Chain:
    """Raises Unreadable for a text with a fault, and for one that does not end in an answer."""
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
    """What stands between a tag and its end, and where the text goes on."""
    closing = patterns.end_of_observation if tag == OBSERVATION else re.compile(rf"</{tag}>")
    end = closing.search(text, begin)
    if end is None:
        raise Unreadable(Fault.UNCLOSED)
    body = text[begin : end.start()]
    if tag != OBSERVATION and _holds_a_span(body, tag, patterns):
        raise Unreadable(Fault.NESTED)
    return body, end.end()


def _holds_a_span(body: str, tag: str, patterns: _Patterns) -> bool:
    """A tag that is spoken of inside a line is text; one alone on its line is not, nor a whole span, nor this tag."""
    opened = {tag}
    for mark in patterns.mark.finditer(body):
        closing, name = mark.groups()
        before, after = body[: mark.start()].rpartition("\n"), body[mark.end() :].partition("\n")
        alone = bool(before[1]) and not before[2].strip() and not after[0].strip()
        if alone or name == tag or (closing and name in opened):
            return True
        opened.add(name)
    return False
