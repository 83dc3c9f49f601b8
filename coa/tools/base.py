"""The interface of tools: a call in, an observation's text out.

A failure that the call caused (no such page, the program raised) is reported in the observation, which the policy
reads. A tool that cannot work raises `ToolDown`, and the episode that called it never becomes a sample.
"""

import json
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from coa.errors import ToolDown
from coa.json_object import Json

PLAIN = "plain"
"""The default layout of observations."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool: `ToolCall("crawl_page", "https://example.org/a", goal="the year it was founded")`"""

    tool: str
    """Name of the tool's tag."""
    argument: str
    """Body of the tag, stripped."""
    goal: str = ""
    """The goal of the call, for tools that summarise: the latest query and thought."""
    layout: str = PLAIN
    """How results are written: a key of `coa.tools.layouts.LAYOUTS`."""


class Fleeting(str):
    """An observation that may differ next time, such as that of a page that did not answer: it is not cached."""


class Tool(Protocol):
    def key(self, call: ToolCall) -> str | None:
        """The cache key of a call: calls with the same key share a result. None for a call that must run each time."""
        ...

    async def __call__(self, call: ToolCall) -> str:
        """The observation's text; raises ToolDown."""
        ...


class UseTool(Protocol):
    """The caller's side: `await use_tool(ToolCall("code", "print(1)"))` is an observation's text."""

    def __call__(self, call: ToolCall, /) -> Awaitable[str]: ...


async def ask_hidden(use_tool: UseTool, tool: str, question: Json) -> Json:
    """The result of a hidden tool, which only graders can call, since no profile has a tag of its name; raises the
    call's InfrastructureError, and ToolDown if there is no such tool.

    Grading that is slow or may fail is such a tool, so that the executor caches, limits and counts it like any call.
    The argument and the result are JSON.
    """
    reply = await use_tool(ToolCall(tool, canonical_json(question)))
    try:
        return json.loads(reply)
    except ValueError as error:
        raise ToolDown(f"{tool}: {reply[:200]}") from error


def canonical_json(value: Json) -> str:
    """The value as JSON text, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
