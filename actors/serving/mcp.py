"""The agent as a tool of other agents: an MCP server over Streamable HTTP, at /mcp of the server."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actors.serving.api.chat import ChatApi
from actors.serving.server import Server
from coa.errors import UserError
from coa.serving.protocols.schemas import CreateChat


class McpApp:
    """The application to mount. It keeps no session, so that any replica may answer any request."""

    def __init__(self, server: Server, host: str) -> None:
        """host: where it is served. At an address of this machine alone, requests that name another host are refused,
        since a browser sends them for pages of others."""
        from mcp.server.mcpserver import Context, MCPServer
        from mcp.server.mcpserver.exceptions import ToolError

        # Where nobody has set up logging, the library has every traceback of the process painted, half a second each:
        # clients that leave at once would hold up all others.
        logging.basicConfig()
        self.mcp: Any = MCPServer("chain-of-agents")

        async def ask(question: str, ctx: Context) -> str:
            """Ask an agent that searches, computes and checks before it answers."""
            try:
                who = await server.gate.admit(key_of(ctx.headers or {}))
                body = CreateChat.model_validate(
                    {"model": server.name, "messages": [{"role": "user", "content": question}]}
                )
                found = await ChatApi(server).chat(body, who)
            except UserError as error:
                raise ToolError(str(error)) from error
            return found["choices"][0]["message"]["content"]

        # Its annotations have to be values where the library looks at them.
        ask.__annotations__ = {"question": str, "ctx": Context, "return": str}
        self.mcp.tool(name="ask", title=server.name)(ask)
        self.app: Any = self.mcp.streamable_http_app(
            streamable_http_path="/", stateless_http=True, json_response=True, host=host
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answers within."""
        async with self.mcp.session_manager.run():
            yield


def key_of(headers: Any) -> str:
    """The API key that a request carries, in either of the two usual headers; empty without one."""
    bearer = headers.get("authorization", "")
    return bearer.removeprefix("Bearer ") if bearer else headers.get("x-api-key", "")
