"""The binding of a tag to a tool of an MCP server, and of the tag's text to the tool's arguments."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coa.json_object import Json, JsonView
from coa.tools.fences import unfenced
from coa.tools.mcp.config import McpTagConfig

DEEPEST = 8
"""Maximum depth of alternatives and references in the schema of an argument."""
_PROGRAM = re.compile(r"\s*+```py", re.IGNORECASE)
"""The beginning of a program as the prompt of the tag `code` asks for it."""


@dataclass(frozen=True)
class McpBinding:
    server: str
    """Name of the server in the configuration."""
    tool: str
    config: McpTagConfig
    schema: JsonView = field(default_factory=dict)
    """JSON schema of the tool's arguments; empty until the server has sent it."""

    def arguments(self, text: str) -> Json:
        """The arguments in a tag's text; raises ValueError, with a message for the policy."""
        fixed = self.config.arguments
        open_ = {name: kind for name, kind in _table(self.schema, "properties").items() if name not in fixed}
        required = [name for name in self.schema.get("required") or () if name in open_]
        if name := self.config.argument or _only(required) or _only(list(open_)):
            return {name: _value(text, open_.get(name, {}), self.schema), **fixed}
        if not open_ and not text:
            return dict(fixed)
        expected = f"the call should hold a JSON object with {', '.join(required or open_) or 'nothing in it'}"
        try:
            value = json.loads(unfenced(text))
        except (ValueError, RecursionError) as error:
            raise ValueError(expected) from error
        if not isinstance(value, dict):
            raise ValueError(expected)
        return {**value, **fixed}

    def arguments_or_text(self, text: str) -> Json | str:
        """The arguments, or the text itself if it does not contain arguments."""
        try:
            return self.arguments(text)
        except ValueError:
            return text


def _only(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ""


def _value(text: str, schema: object, root: JsonView) -> object:
    """A tag's text as the only argument: unchanged if the tool takes a text there (a program without its fence), or
    else as JSON."""
    if "string" in (_types(schema, root, DEEPEST) or ("string",)):
        return unfenced(text) if _PROGRAM.match(text) else text
    try:
        return json.loads(unfenced(text))
    except (ValueError, RecursionError):
        return text  # the server reports the error


def _types(schema: object, root: JsonView, deepest: int) -> set[str]:
    """The JSON types that a schema names, as `type`, by alternatives, values or a reference; empty if it names none.

    _types({"anyOf": [{"type": "string"}, {"type": "null"}]}, {}, 9) == {"string", "null"}
    """
    if not isinstance(schema, Mapping) or not deepest:
        return set()
    named = schema.get("type")
    types = {named} if isinstance(named, str) else {*filter(_is_text, named)} if isinstance(named, list) else set()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not types and isinstance(values, list):
        types = {"string" if _is_text(value) else "another" for value in values}
    within = [one for key in ("anyOf", "oneOf", "allOf") if isinstance(some := schema.get(key), list) for one in some]
    match str(schema.get("$ref")).split("/"):
        case ["#", ("$defs" | "definitions") as place, name]:
            within.append(_table(root, place).get(name))
    return types.union(*(_types(one, root, deepest - 1) for one in within))


def _table(schema: JsonView, key: str) -> JsonView:
    found = schema.get(key)
    return found if isinstance(found, Mapping) else {}


def _is_text(value: object) -> bool:
    return isinstance(value, str)
