"""The binding of a tag to a tool of an MCP server, and of the tag's text to the tool's arguments."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coa.tools.mcp.config import McpTagConfig


@dataclass(frozen=True)
class McpBinding:
    server: str
    """Name of the server in the configuration."""
    tool: str
    config: McpTagConfig
    schema: Mapping[str, Any] = field(default_factory=dict)
    """JSON schema of the tool's arguments; empty until the server has sent it."""

    def arguments(self, text: str) -> dict[str, Any]:
        """The arguments in a tag's text; raises ValueError, with a message for the policy."""
        fixed = self.config.arguments
        open_ = {name: kind for name, kind in self.schema.get("properties", {}).items() if name not in fixed}
        required = [name for name in self.schema.get("required", ()) if name in open_]
        if name := self.config.argument or _only(required) or _only(list(open_)):
            return {name: _value(text, open_.get(name, {})), **fixed}
        if not open_ and not text:
            return dict(fixed)
        expected = f"the call should hold a JSON object with {', '.join(required or open_) or 'nothing in it'}"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(expected) from error
        if not isinstance(value, dict):
            raise ValueError(expected)
        return {**value, **fixed}

    def told(self, text: str) -> Any:
        """The arguments, or the text itself if it does not contain arguments."""
        try:
            return self.arguments(text)
        except ValueError:
            return text


def _only(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ""


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A tag's text as the only argument: unchanged, or as JSON if the tool's argument is not a string."""
    if schema.get("type", "string") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # the server reports the error
