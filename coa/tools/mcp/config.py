"""Which tags of a profile are answered by tools of MCP servers, and where these servers are."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from coa.errors import UserError
from coa.http.addresses import is_web_address, shown
from coa.http.keys import read_key


@dataclass(frozen=True)
class McpTagConfig:
    """The tool that answers a tag."""

    tool: str = ""
    """The server's name of it; empty takes the tag's."""
    argument: str = ""
    """The argument that the tag's text is for; empty takes the only one that the tool requires, or else its only one.
    For a tool that requires several the text is a JSON object of arguments."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments that are the same in each call."""
    cached: bool = False
    """Whether calls with the same text share one result: right for a tool that reads, and has no effects."""
    max_chars: int = 8000
    """Characters of an observation."""


@dataclass(frozen=True)
class McpConfig:
    """A server, by its address or by the command that starts it, and the tags that its tools answer."""

    url: str | None = None
    """Its endpoint for Streamable HTTP, such as http://127.0.0.1:9000/mcp."""
    command: tuple[str, ...] = ()
    """A program with its arguments, started where tools run; it speaks MCP on its standard input and output."""
    key_env: str | None = None
    """Environment variable with the key that is sent to `url` as a bearer token; None sends none."""
    env: tuple[str, ...] = ()
    """Environment variables that the command gets, besides PATH, HOME and the like."""
    tags: dict[str, McpTagConfig] = field(default_factory=dict)
    """By the tag's name."""
    connect_s: float = 20.0
    """Seconds to connect and list the tools."""

    def __post_init__(self) -> None:
        if self.connect_s <= 0:
            raise ValueError(f"tools.mcp: connect_s is {self.connect_s:g}, expected more than 0")

    @property
    def where(self) -> str:
        return shown(self.url) if self.url is not None else " ".join(self.command)


def check_mcp(servers: Mapping[str, McpConfig], tags: Collection[str]) -> None:
    """Raises UserError for settings that can't work, as far as they tell. tags: those that call tools."""
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
