"""Tools of MCP servers (https://modelcontextprotocol.io) behind tags.

    tools.mcp.weather.url=http://127.0.0.1:9000/mcp
    tools.mcp.weather.tags.forecast.tool=get_forecast

    <forecast> Lisbon</forecast>   calls   get_forecast(city="Lisbon")

An error that the tool reports is an observation; a server that is down, or no longer has the tool, is ToolDown.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from coa.errors import ToolDown, UserError
from coa.tools.base import ToolCall
from coa.tools.layouts import LAYOUTS, Output
from coa.tools.mcp.binding import McpBinding
from coa.tools.mcp.config import McpConfig, McpTagConfig
from coa.tools.mcp.connection import Connection, lacking


def mcp_tools(servers: Mapping[str, McpConfig]) -> dict[str, "McpTool"]:
    """The tools of the servers, by tag."""
    tools: dict[str, McpTool] = {}
    for name, server in servers.items():
        connection = Connection(name, server)
        tools |= {tag: McpTool(connection, tag, config) for tag, config in server.tags.items()}
    return tools


class McpTool:
    """The tool of a tag; several tools may share a server."""

    def __init__(self, connection: Connection, tag: str, config: McpTagConfig) -> None:
        self._connection, self._tag, self._config = connection, tag, config
        self._binding = McpBinding(connection.name, config.tool or tag, config)

    def key(self, call: ToolCall) -> str | None:
        return call.argument if self._config.cached else None

    async def __call__(self, call: ToolCall) -> str:
        await self._look()
        layout = LAYOUTS[call.layout]
        try:
            arguments = self._binding.arguments(call.argument)
        except ValueError as error:
            return layout.output(Output(None, "", str(error)))
        text, failed = await self._connection.call(self._binding.tool, arguments)
        text = text[: self._config.max_chars]
        return layout.output(Output(1, "", text or "the tool failed") if failed else Output(0, text, ""))

    async def check(self) -> None:
        """Raises UserError if the server can't be reached, or has no such tool or argument."""
        where = f"tools.mcp.{self._connection.name}"
        try:
            listed = await self._connection.tools()
        except ToolDown as error:
            raise UserError(f"{where}: {error}") from error
        name = self._binding.tool
        if name not in listed:
            raise UserError(f"{where}.tags.{self._tag}: {lacking(self._connection.where, name, listed)}")
        known = listed[name].get("properties", {})
        for argument in (*filter(None, [self._config.argument]), *self._config.arguments):
            if argument not in known:
                has = ", ".join(known) or "none"
                raise UserError(f"{where}.tags.{self._tag}: {name} has no argument {argument}; it has {has}")

    async def binding(self) -> McpBinding:
        """The binding from the server's current description of the tool, or from the last one if the server can't be
        reached."""
        with suppress(ToolDown):
            await self._look()
        return self._binding

    async def close(self) -> None:
        await self._connection.close()

    async def _look(self) -> None:
        """Updates the binding; raises ToolDown if the server can't be reached, or has no such tool."""
        listed, name = await self._connection.tools(), self._binding.tool
        if name not in listed:
            raise ToolDown(lacking(self._connection.where, name, listed))
        self._binding = replace(self._binding, schema=listed[name])
