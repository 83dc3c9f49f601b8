"""The grammar of a chain: one table per agent profile, used by all code that deals with tags.

A chain is a sequence of spans, `<tag> text</tag>`, without anything between them. The table defines the tags, which of
them call tools, the form of their text, which tag may follow which, where sampling stops, and the prompt. The renderer,
the parser, the training mask (`coa.agent.codec`), constrained decoding (`coa.agent.constraint`), the format reward and
the episode loop all use it. (arXiv 2508.13167, section 3.1 and appendix D.)
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, cached_property
from types import MappingProxyType

from coa.agent.chain_format import OWN, ChainFormat

START = ""
"""Key of the transition table for a chain that has not begun."""

OBSERVATION = "observation"
THINK = "think"
ANSWER = "answer"


class Kind(StrEnum):
    ROLE = "role"
    """The policy speaks in a role; decoding continues."""
    TOOL = "tool"
    """The policy calls a tool; decoding stops and an observation follows."""
    ENVIRONMENT = "environment"
    """Text of the environment, which the policy may never write."""
    TERMINAL = "terminal"
    """The final answer; the episode ends."""


class Form(StrEnum):
    """The form of a tag's text. An enforced grammar allows nothing else."""

    FREE = "free"
    """Any text, including empty text."""
    TEXT = "text"
    """Any text that is not blank."""
    LINE = "line"
    """One line that is not blank."""
    PROGRAM = "program"
    """A program, bare or fenced as ```py, and its standard input, fenced as ```sh."""
    SCORE = "score"
    """A number from 1 to 4, followed by a reason."""


@dataclass(frozen=True, slots=True)
class Tag:
    name: str
    kind: Kind
    use: str
    """Purpose of the tag, as written in the prompt."""
    form: Form = Form.FREE
    max_tokens: int = 2048
    """Maximum tokens of the tag's text, with an enforced grammar."""

    @property
    def open(self) -> str:
        return f"<{self.name}>"

    @property
    def close(self) -> str:
        return f"</{self.name}>"


@dataclass(frozen=True, slots=True)
class Span:
    """One activation of a role, a tool or the environment: `Span("plan", "find the town")`."""

    tag: str
    text: str


Chain = tuple[Span, ...]

_tags: dict[str, Tag] = {
    tag.name: tag
    for tag in (
        Tag(THINK, Kind.ROLE, "reason freely, and say which function comes next and why"),
        Tag("plan", Kind.ROLE, "split the question into fine-grained steps"),
        Tag("wiki_search", Kind.TOOL, "look one thing up in the encyclopedia", Form.LINE, 128),
        Tag("web_search", Kind.TOOL, "search the web with one query", Form.LINE, 128),
        Tag("crawl_page", Kind.TOOL, "read the page at one address, or several joined by |", Form.LINE, 512),
        Tag(
            "code",
            Kind.TOOL,
            "run a Python program; what it prints comes back. The program stands in a ```py fence; a ```sh fence "
            "after it holds its standard input, if any",
            Form.PROGRAM,
            4096,
        ),
        Tag(OBSERVATION, Kind.ENVIRONMENT, "what a tool returned; never write it yourself"),
        Tag("reflection", Kind.ROLE, "judge the latest results critically"),
        Tag("suggested_answer", Kind.ROLE, "propose an answer, to be checked", Form.TEXT),
        Tag("double_check", Kind.ROLE, "score the proposed answer from 1 (wrong) to 4 (right) and say why", Form.SCORE),
        Tag(ANSWER, Kind.TERMINAL, "give the final answer, short and definite", Form.TEXT, 4096),
    )
}
TAGS: Mapping[str, Tag] = MappingProxyType(_tags)
"""All tags of all profiles. Untrusted text that looks like one of them is escaped, whichever profile is in use."""


def declare(tag: Tag) -> None:
    """Registers a new tag, which has to happen before any text is escaped or encoded. Raises ValueError if there is
    another tag of that name."""
    if not re.fullmatch("[a-z][a-z_]*", tag.name):
        raise ValueError(f"{tag.name!r}: a tag's name is lower-case letters and underscores")
    if _tags.setdefault(tag.name, tag) != tag:
        raise ValueError(f"there is another tag {tag.name!r} already")


@dataclass(frozen=True, slots=True)
class _Patterns:
    tag: re.Pattern[str]
    tag_like: re.Pattern[str]
    escaped: re.Pattern[str]


@cache
def _patterns_of(names: tuple[str, ...]) -> _Patterns:
    any_name = "|".join(names)
    return _Patterns(
        tag=re.compile(rf"<(/?)({any_name})>"),
        tag_like=re.compile(rf"<(\\*)(/?(?:{any_name})>)"),
        escaped=re.compile(rf"<\\(\\*/?(?:{any_name})>)"),
    )


def _patterns() -> _Patterns:
    return _patterns_of(tuple(_tags))


def tag_pattern() -> re.Pattern[str]:
    """Pattern of well-formed tags: group 1 is "/" for a closing tag, group 2 the name."""
    return _patterns().tag


def escape(text: str) -> str:
    r"""Text in which nothing reads as a tag: `<answer>` becomes `<\answer>`, `<\answer>` becomes `<\\answer>`."""
    return _patterns().tag_like.sub(r"<\\\1\2", text)


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    return _patterns().escaped.sub(r"<\1", text)


def render_span(span: Span, form: ChainFormat = OWN) -> str:
    """The span without the white space around it."""
    return f"<{span.tag}>{form.opened}{escape(span.text)}{form.closed}</{span.tag}>"


def render(chain: Iterable[Span], form: ChainFormat = OWN) -> str:
    """The tag text, in our own format the canonical one: `parse(render(chain)).chain == chain` for every chain, also
    if both have the same format."""
    behind = {OBSERVATION: form.observed}
    return "".join(form.before + render_span(span, form) + behind.get(span.tag, form.after) for span in chain)


class Fault(StrEnum):
    """The errors that tag text can have."""

    STRAY_TEXT = "text outside of tags"
    UNCLOSED = "a tag left open"
    NESTED = "a tag inside another"
    STRAY_CLOSE = "a closing tag without its opening"


@dataclass(frozen=True, slots=True)
class Parsed:
    chain: Chain
    """The spans before the first fault."""
    fault: Fault | None
    at: int
    """Offset of the fault, or the length of the text."""


def parse(text: str, form: ChainFormat = OWN) -> Parsed:
    """Parses tag text in one pass, up to its end or the first fault. White space between spans is allowed."""
    return parse_with(_patterns().tag, text, form)


def parse_with(tag: re.Pattern[str], text: str, form: ChainFormat = OWN) -> Parsed:
    """Like `parse`, with a given pattern for tags: group 1 is "/" for a closing tag, group 2 the name in any case."""
    spans: list[Span] = []
    opened: str | None = None
    end = 0

    def stop(fault: Fault | None, at: int) -> Parsed:
        return Parsed(tuple(spans), fault, at)

    for match in tag.finditer(text):
        closing, name = match[1], match[2].lower()
        between = text[end : match.start()]
        if opened is None:
            if between.strip():
                return stop(Fault.STRAY_TEXT, end)
            if closing:
                return stop(Fault.STRAY_CLOSE, match.start())
            opened = name
        elif closing and name == opened:
            spans.append(Span(opened, unescape(form.bare(between))))
            opened = None
        else:
            return stop(Fault.NESTED, match.start())
        end = match.end()
    if opened is not None:
        return stop(Fault.UNCLOSED, end)
    if text[end:].strip():
        return stop(Fault.STRAY_TEXT, end)
    return stop(None, len(text))


@dataclass(frozen=True)
class Profile:
    """A kind of agent: its tags, which of them may follow which, and the rules in its prompt."""

    name: str
    tags: tuple[Tag, ...]
    transitions: Mapping[str, tuple[str, ...]]
    """For each tag, START included, the tags that may follow. `think` may come anywhere and does not change the state;
    after an observation, the state is that of its tool call."""
    guidance: str
    """The rules of this profile, as written in its prompt."""
    format: ChainFormat = OWN
    """How its prompt and chains are written (`AgentConfig.formats`)."""

    @cached_property
    def tools(self) -> tuple[Tag, ...]:
        return tuple(tag for tag in self.tags if tag.kind is Kind.TOOL)

    @cached_property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a turn of the policy; they are part of the turn."""
        return tuple(tag.close for tag in self.tags if tag.kind in (Kind.TOOL, Kind.TERMINAL))

    def state(self, chain: Iterable[Span]) -> str:
        """The state (a key of the transition table) after a chain."""
        reached = START
        for span in chain:
            if span.tag not in (THINK, OBSERVATION):
                reached = span.tag
        return reached

    def allows(self, state: str, tag: str) -> bool:
        """Whether the policy may open `tag` next."""
        return tag == THINK or tag in self.transitions.get(state, ())

    def transitions_hold(self, chain: Chain) -> bool:
        """Whether each span may follow the previous spans, and tool calls, and only those, have an observation."""
        return self.broken_transition(chain) is None

    def broken_transition(self, chain: Chain) -> str | None:
        """The first transition that the table forbids, such as "`wiki_search` at the start"; None if there is none."""
        state, owed = START, False
        for span in chain:
            if (span.tag == OBSERVATION) != owed:
                return f"`{span.tag}` in place of an observation" if owed else "an observation without a call"
            if not owed:
                if not self.allows(state, span.tag):
                    return f"`{span.tag}` after `{state}`" if state else f"`{span.tag}` at the start"
                state = state if span.tag == THINK else span.tag
            owed = not owed and TAGS[span.tag].kind is Kind.TOOL
        return None

    def instructions(self) -> str:
        """The instructions that the policy gets before the question."""
        functions = "\n".join(f"- {tag.open} ... {tag.close}: {tag.use}" for tag in self.tags)
        return (
            "Solve the question step by step with these functions, each written between its tags and nothing "
            f"outside of tags:\n{functions}\n{self.guidance}"
        )

    def preface(self) -> str:
        """The text of the user's message before the question, if the prompt contains the instructions."""
        own = self.format.prompt
        return f"{self.instructions()}\n\nQuestion: " if own is None else own


def goal_of(chain: Sequence[Span]) -> str:
    """The purpose of a tool call: the latest search query and the latest thought, if any."""

    def latest(tag: str) -> str:
        return next((span.text.strip() for span in reversed(chain) if span.tag == tag), "")

    return "\n".join(text for text in (latest("web_search"), latest(THINK)) if text)
