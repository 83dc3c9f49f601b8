"""Tools that only graders can call, since no profile has a tag of their name.

Grading that is slow or may fail is such a tool, so that the executor caches, limits and counts it like any call. The
argument and the result are JSON.
"""

import json

from coa.errors import ToolDown
from coa.json_object import Json
from coa.tools.base import ToolCall, UseTool


async def ask(use_tool: UseTool, tool: str, question: Json) -> Json:
    """The result of a hidden tool; raises the call's InfrastructureError, and ToolDown if there is no such tool."""
    reply = await use_tool(ToolCall(tool, canonical(question)))
    try:
        return json.loads(reply)
    except ValueError as error:
        raise ToolDown(f"{tool}: {reply[:200]}") from error


def canonical(value: Json) -> str:
    """The value as JSON text, the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
