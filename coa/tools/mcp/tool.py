"""Tools of MCP servers (https://modelcontextprotocol.io) behind tags.

    tools.mcp.weather.url=http://127.0.0.1:9000/mcp
    tools.mcp.weather.tags.forecast.tool=get_forecast

    <forecast> Lisbon</forecast>   calls   get_forecast(city="Lisbon")

What a tool itself calls an error is an observation; a server that is away, or has no such tool any more, is ToolDown.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from coa.errors import ToolDown, UserError
from coa.tools.base import ToolCall
from coa.tools.layouts import LAYOUTS, Output
from coa.tools.mcp.config import McpConfig, McpTagConfig
from coa.tools.mcp.connection import Connection, lacking


def mcp_tools(servers: Mapping[str, McpConfig]) -> dict[str, "McpTool"]:
    """By tag."""
    tools: dict[str, McpTool] = {}
    for name, server in servers.items():
        connection = Connection(name, server)
        tools |= {tag: McpTool(connection, tag, config) for tag, config in server.tags.items()}
    return tools


class McpTool:
    """A tag's tool, on a server that several may share."""

    def __init__(self, connection: Connection, tag: str, config: McpTagConfig) -> None:
        self._connection, self._tag, self._config = connection, tag, config
        self._name = config.tool or tag

    def key(self, call: ToolCall) -> str | None:
        return call.argument if self._config.cached else None

    async def __call__(self, call: ToolCall) -> str:
        listed = await self._connection.tools()
        if self._name not in listed:
            raise ToolDown(lacking(self._connection.where, self._name, listed))
        layout = LAYOUTS[call.layout]
        try:
            arguments = self._read(call.argument, listed[self._name])
        except ValueError as error:
            return layout.output(Output(None, "", str(error)))
        text, failed = await self._connection.call(self._name, arguments)
        text = text[: self._config.max_chars]
        return layout.output(Output(1, "", text or "the tool failed") if failed else Output(0, text, ""))

    async def check(self) -> None:
        """Raises UserError if the server is not there, or has no such tool or argument."""
        where = f"tools.mcp.{self._connection.name}"
        try:
            listed = await self._connection.tools()
        except ToolDown as error:
            raise UserError(f"{where}: {error}") from error
        if self._name not in listed:
            raise UserError(f"{where}.tags.{self._tag}: {lacking(self._connection.where, self._name, listed)}")
        known = listed[self._name].get("properties", {})
        for argument in (*filter(None, [self._config.argument]), *self._config.arguments):
            if argument not in known:
                has = ", ".join(known) or "none"
                raise UserError(f"{where}.tags.{self._tag}: {self._name} has no argument {argument}; it has {has}")

    async def close(self) -> None:
        await self._connection.close()

    def _read(self, text: str, schema: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that a tag's text stands for; raises ValueError, in words for the policy."""
        fixed = self._config.arguments
        open_ = {name: kind for name, kind in schema.get("properties", {}).items() if name not in fixed}
        required = [name for name in schema.get("required", ()) if name in open_]
        if name := self._config.argument or _only(required) or _only(list(open_)):
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


def _only(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else ""


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """A tag's text as the only argument: as it is, or as JSON where the tool wants something else than a text."""
    if schema.get("type", "string") == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text  # the server says what it wants
