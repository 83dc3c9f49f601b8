"""Configuration of MCP servers, and of the tags that their tools handle."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coa.bounds import Above0
from coa.errors import UserError
from coa.http.addresses import is_web_address, redact
from coa.http.keys import read_key
from coa.json_object import Json


@dataclass(frozen=True)
class McpTagConfig:
    """The tool of an MCP server that handles a tag."""

    tool: str = ""
    """Name of the tool on the server; empty takes the tag's name."""
    argument: str = ""
    """Argument that receives the tag's text; empty takes the only argument that the tool requires, or else its only
    argument. If the tool requires several, the tag's text is a JSON object of arguments."""
    arguments: Json = field(default_factory=dict)
    """Arguments that are the same in each call."""
    cached: bool = False
    """Whether calls with the same text share one result; set it only for a tool without side effects."""
    max_chars: int = 8000
    """Maximum characters of a tool result."""


@dataclass(frozen=True)
class McpConfig:
    """An MCP server, given by its URL or by the command that starts it, and the tags that its tools handle."""

    url: str | None = None
    """The server's endpoint for Streamable HTTP, such as http://127.0.0.1:9000/mcp; set either `url` or `command`."""
    command: tuple[str, ...] = ()
    """Program, with its arguments, that speaks MCP on standard input and output; each tool executor starts its own
    process."""
    key_env: str | None = None
    """Environment variable whose value is sent to `url` as a bearer token; None sends none."""
    env: tuple[str, ...] = ()
    """Environment variables that are passed to `command`, besides PATH, HOME and the like."""
    tags: dict[str, McpTagConfig] = field(default_factory=dict)
    """The tools of this server, by the tag that each handles."""
    connect_s: Above0 = 20.0
    """Maximum seconds to connect and to list the server's tools."""

    @property
    def where(self) -> str:
        return redact(self.url) if self.url is not None else " ".join(self.command)


def check_mcp(servers: Mapping[str, McpConfig], tags: Collection[str]) -> None:
    """Raises UserError for settings that can't work, without asking the servers. tags: the tags that call tools."""
    of: dict[str, str] = {}
    for name, server in servers.items():
        where = f"tools.mcp.{name}"
        if (server.url is None) == (not server.command):
            raise UserError(f"{where}: set url or command, one of the two")
        if server.url is not None and not is_web_address(server.url):
            raise UserError(f"{where}.url is {server.where}, expected an address such as http://127.0.0.1:9000/mcp")
        if server.command and shutil.which(server.command[0]) is None:
            raise UserError(f"{where}.command: there is no program {server.command[0]}")
        if not server.tags:
            raise UserError(f"{where} answers no tag: set {where}.tags.TAG.tool=TOOL")
        for variable in (*filter(None, [server.key_env]), *server.env):
            read_key(variable)
        for tag in server.tags:
            if tag not in tags:
                known = ", ".join(sorted(tags))
                raise UserError(f"{where}.tags.{tag}: no profile has such a tag for a tool; known are {known}")
            if (other := of.setdefault(tag, where)) != where:
                raise UserError(f"{where}.tags.{tag}: {other} has this tag already")
