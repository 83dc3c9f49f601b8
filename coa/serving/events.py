"""What a served episode says, in the order in which it happens: marks of the chain, what tools returned, and its end.

Opened(tag) ──► Text ... ──► Closed(tag) ──► Returned, where the tag called a tool ──► Opened ... ──► Finished | Broke
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields

from coa.serving.chain import Closed, Opened, Text
from coa.types import Status

TOOL_DOWN = "tool_unavailable"
"""Code of an episode whose tool could not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedUsage:
    """Tokens of a request. Those of several samples, and of a judge that selects among them, are added up."""

    input_tokens: int = 0
    """Of the prompt, and of what tools returned."""
    output_tokens: int = 0
    """That the model sampled."""
    reasoning_tokens: int = 0
    """Of these, all before the answer."""
    cached_tokens: int = 0
    tool_calls: int = 0
    turns: int = 0
    samples: int = 1


def total(parts: Iterable[ServedUsage]) -> ServedUsage:
    """Of several samples."""
    names = [field.name for field in fields(ServedUsage)]
    parts = list(parts)
    return ServedUsage(**{name: sum(getattr(part, name) for part in parts) for name in names})


def fingerprint(versions: Iterable[int]) -> str:
    """Names the weights, where a protocol has a field for it: `weights-5`, or `weights-5-6` where both have sampled."""
    return "-".join(("weights", *map(str, versions)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """A tool answered the call of the tag that was closed last."""

    tool: str
    text: str
    seconds: float
    tokens: int
    """That the model reads of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The episode came to its end."""

    status: Status
    answer: str
    """Empty where there is none."""
    usage: ServedUsage
    limit: str = ""
    """The limit that ended it, as requests and answers call it: `max_output_tokens`, `max_turns`, `max_tool_calls` or
    `max_seconds`. Empty where none did."""
    versions: tuple[int, ...] = ()
    """Of the weights that sampled it, in order; several where new ones were taken over meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broke:
    """A part of the system failed: there is no answer, and none of it is the model's fault."""

    code: str
    message: str


Event = Opened | Text | Closed | Returned | Finished | Broke
