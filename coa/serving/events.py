"""The events of a served episode, in order: marks of the chain, tool results, and its end.

Opened(tag) ──► Text ... ──► Closed(tag) ──► Returned, if the tag called a tool ──► Opened ... ──► Finished | Broke
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from coa.serving.chain import Closed, Opened, Text
from coa.types import Status

TOOL_DOWN = "tool_unavailable"
"""Error code of an episode whose tool was down."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedUsage:
    """Tokens of a request. Those of several samples, and of a judge that selects among them, are added up."""

    input_tokens: int = 0
    """Tokens of the prompt and of tool results."""
    output_tokens: int = 0
    """Tokens that the model sampled."""
    reasoning_tokens: int = 0
    """Output tokens before the answer."""
    cached_tokens: int = 0
    tool_calls: int = 0
    turns: int = 0
    samples: int = 1


def total(parts: Iterable[ServedUsage]) -> ServedUsage:
    """The sum of several samples' usage."""
    names = [field.name for field in fields(ServedUsage)]
    parts = list(parts)
    return ServedUsage(**{name: sum(getattr(part, name) for part in parts) for name in names})


def fingerprint(versions: Iterable[int]) -> str:
    """Name of the weights, for protocols with such a field: `weights-5`, or `weights-5-6` if both have sampled."""
    return "-".join(("weights", *map(str, versions)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """The result of the tool call of the tag that was closed last."""

    tool: str
    text: str
    seconds: float
    tokens: int
    """Number of tokens of the result that the model reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The episode has ended."""

    status: Status
    at: int = 0
    """When it ended, in seconds since 1970."""
    answer: str
    """The answer; empty if there is none."""
    usage: ServedUsage
    limit: str = ""
    """The limit that ended the episode, by its name in requests and answers: `max_output_tokens`, `max_turns`,
    `max_tool_calls` or `max_seconds`. Empty if no limit ended it."""
    stopped_by: str = ""
    """The request's stop sequence that ended the answer."""
    versions: tuple[int, ...] = ()
    """Weight versions that sampled the episode, in order; several if new weights were loaded meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """A part of the system failed, through no fault of the model: there is no answer."""

    code: str
    message: str


Event = Opened | Text | Closed | Returned | Finished | Broke
