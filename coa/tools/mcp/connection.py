"""A connection to an MCP server, over Streamable HTTP or a command's standard input and output.

    first call -> connect, list the tools -> call ... call -> lost -> the next call connects again

All tools of a server share it. A separate task holds it, since the library requires that a connection is closed in the
task that opened it.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from yarl import URL

from coa.errors import ToolDown
from coa.http.keys import bearer
from coa.http.proxies import is_loopback
from coa.json_object import JsonView
from coa.tools.mcp.config import McpConfig

if TYPE_CHECKING:
    import mcp.types

MAX_BYTES = 1 << 24
"""Maximum bytes of one event of a server; a longer event counts as a failure of the server."""


@dataclass(eq=False)
class _Session:
    ready: asyncio.Future["mcp.Client"]
    """The client once it is connected, or ToolDown."""
    tools: dict[str, JsonView] = field(default_factory=dict)
    """The schema of the arguments of each tool."""
    end: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Connection:
    """The connection that all tools of a server share. It belongs to the event loop of the first call."""

    def __init__(self, name: str, config: McpConfig, mode: str = "auto") -> None:
        """name: the recipe's name of the server. mode: the protocol version, as in `mcp.Client`; "auto" is the newest
        that the server supports."""
        self.name, self._config, self._mode = name, config, mode
        self._session: _Session | None = None

    @property
    def where(self) -> str:
        return self._config.where

    async def tools(self) -> Mapping[str, JsonView]:
        """The schemas of the arguments of each tool; raises ToolDown."""
        return (await self._connected()).tools

    async def call(self, tool: str, arguments: JsonView) -> tuple[str, bool]:
        """The result's text, and whether it is an error of the tool; raises ToolDown."""
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS, INVALID_REQUEST

        session = await self._connected()
        text, code = await _result_of(session.ready.result(), tool, arguments)
        if code == INVALID_REQUEST:  # the server has lost the session, so nothing was called
            await self._drop(session)
            session = await self._connected()
            text, code = await _result_of(session.ready.result(), tool, arguments)
        if code == CONNECTION_CLOSED:
            await self._drop(session)
        if code not in (_NO_ERROR, _TOOL_ERROR, INVALID_PARAMS):
            raise ToolDown(f"{self.where}: {tool}: {text}")
        if code != _NO_ERROR and tool not in (listed := await self._listed_again(session)):
            raise ToolDown(lacking(self.where, tool, listed))
        return text, code != _NO_ERROR

    async def close(self) -> None:
        if self._session is not None:
            await self._drop(self._session)

    async def _connected(self) -> _Session:
        if self._session is None:
            session = self._session = _Session(asyncio.get_running_loop().create_future())
            session.task = asyncio.create_task(self._hold(session))
            session.task.add_done_callback(lambda task: self._forget(session, task))
        session = self._session
        await asyncio.shield(session.ready)
        return session

    async def _hold(self, session: _Session) -> None:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(self._config.connect_s):
                client = await stack.enter_async_context(_client(self._config, self._mode))
                session.tools = await _list(client)
            session.ready.set_result(client)
            await session.end.wait()

    def _forget(self, session: _Session, task: asyncio.Task[None]) -> None:
        """Drops this connection, whatever the library raised; the next call makes another one."""
        if self._session is session:
            self._session = None
        error = None if task.cancelled() else task.exception()
        if not session.ready.done():
            why = f"nothing within {self._config.connect_s:g} s" if isinstance(error, TimeoutError) else _reason(error)
            session.ready.set_exception(ToolDown(f"no MCP server answers at {self.where}: {why}"))
            session.ready.exception()  # retrieved, since its waiters may have been cancelled

    async def _drop(self, session: _Session) -> None:
        if self._session is session:
            self._session = None
        session.end.set()
        if session.task is not None:
            await asyncio.wait([session.task])

    async def _listed_again(self, session: _Session) -> JsonView:
        """The server's current tools; if it fails to list them, the tools that it listed before."""
        from mcp import MCPError

        with suppress(MCPError):
            session.tools = await _list(session.ready.result())
        return session.tools


_NO_ERROR, _TOOL_ERROR = 0, 1
"""Codes in addition to those of JSON-RPC, which are negative."""


async def _result_of(client: "mcp.Client", tool: str, arguments: JsonView) -> tuple[str, int]:
    """The result of a call, or the reason why there is none, and its code."""
    from mcp import MCPError
    from pydantic import ValidationError

    try:
        result = await client.call_tool(tool, dict(arguments))
    except MCPError as error:
        return str(error), error.code
    except (ValidationError, RuntimeError) as error:  # the result violates the protocol or the tool's schema
        raise ToolDown(f"{tool}: {str(error).splitlines()[0]}") from error
    return text_of(result), _TOOL_ERROR if result.is_error else _NO_ERROR


def text_of(result: "mcp.types.CallToolResult") -> str:
    """A result's text, or the JSON of its structured content if it has no text; content that is no text is named by its
    type and address."""
    texts = list(map(_text_of_block, result.content))
    structured = result.structured_content
    if structured is not None and not any(block.type == "text" and block.text for block in result.content):
        texts = [json.dumps(structured, ensure_ascii=False), *filter(None, texts)]
    return "\n".join(texts)


def _text_of_block(block: "mcp.types.ContentBlock") -> str:
    match block.type:
        case "text":
            return block.text
        case "resource":
            inner = block.resource
            text = getattr(inner, "text", None)
            return f"[{inner.mime_type or 'data'} at {inner.uri}]" if text is None else text
        case "resource_link":
            return f"[{block.name} at {block.uri}]"
    return f"[{getattr(block, 'mime_type', block.type)}]"


def lacking(where: str, tool: str, listed: JsonView) -> str:
    return f"{where} has no tool {tool}; it has {', '.join(listed) or 'none'}"


async def _list(client: "mcp.Client") -> dict[str, JsonView]:
    found: dict[str, JsonView] = {}
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
        found |= {tool.name: tool.input_schema for tool in page.tools}
        if (cursor := page.next_cursor) is None:
            return found


@asynccontextmanager
async def _client(config: McpConfig, mode: str) -> AsyncIterator["mcp.Client"]:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client

    if config.url is None:
        program, *arguments = config.command
        given = {name: os.environ[name] for name in config.env}
        async with Client(StdioServerParameters(command=program, args=arguments, env=given), mode=mode) as client:
            yield client
        return
    # No read timeout: the executor limits the time of a call.
    timeout = httpx2.Timeout(config.connect_s, read=None)
    by_environment = not is_loopback(URL(config.url).host or "")  # through its proxies
    async with httpx2.AsyncClient(headers=bearer(config.key_env), timeout=timeout, trust_env=by_environment) as http:
        over = streamable_http_client(config.url, http_client=http, max_sse_event_size=MAX_BYTES)
        async with Client(over, mode=mode) as client:
            yield client


def _reason(error: BaseException | None) -> str:
    """The first error of an exception group, which a task group raises, in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    lines = str(error).strip().splitlines() if error is not None else []
    return lines[0] if lines else type(error).__name__
