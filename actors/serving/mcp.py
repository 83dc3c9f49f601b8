"""The agent as a tool for other agents: an MCP server over Streamable HTTP, at /mcp."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from actors.serving.server import Server
from coa.errors import UserError
from coa.serving.events import Broke, Event, Finished
from coa.serving.faults import ApiError, fault_of
from coa.serving.keys import key_of
from coa.serving.protocols.schemas import CreateChat
from coa.serving.requests import of_chat
from coa.types import Status


class McpApp:
    """The MCP application. It is stateless, so that any replica may answer any request."""

    def __init__(self, server: Server, host: str) -> None:
        """host: address at which it is served. On a loopback address, requests for another host name are refused, as
        protection against DNS rebinding."""
        from mcp.server.mcpserver import Context, MCPServer
        from mcp.server.mcpserver.exceptions import ToolError

        # Unless logging is configured, the library installs a handler that takes half a second to render each
        # traceback: disconnecting clients would delay all others.
        logging.basicConfig()
        self.mcp = MCPServer("chain-of-agents")

        async def ask(question: str, ctx: Context) -> str:
            """Ask an agent that searches, computes and checks before it answers."""
            try:
                who = await server.gate.admit(key_of(ctx.headers or {}))
                body = CreateChat.model_validate(
                    {"model": server.name, "messages": [{"role": "user", "content": question}]}
                )
                request = of_chat(body, server.target(body.model).profile, server.defaults)
                return await answer_of(server.play(await server.admitted(request, who), who))
            except UserError as error:
                raise ToolError(str(error)) from error

        # The library needs the annotations as values instead of strings.
        ask.__annotations__ = {"question": str, "ctx": Context, "return": str}
        self.mcp.tool(name="ask", title=server.name)(ask)
        self.app = self.mcp.streamable_http_app(
            streamable_http_path="/", stateless_http=True, json_response=True, host=host
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serves requests during the body."""
        async with self.mcp.session_manager.run():
            yield


async def answer_of(episode: AsyncGenerator[Event]) -> str:
    """The episode's answer; raises ApiError if it ends without one, since a partial answer would be taken for a
    complete one."""
    async with aclosing(episode) as events:
        async for event in events:
            match event:
                case Finished(status=Status.ANSWERED, answer=answer):
                    return answer
                case Finished(status=status, limit=limit):
                    raise ApiError(500, "no_answer", f"the agent came to no answer: {limit or status.value}")
                case Broke(code=code, message=message):
                    raise fault_of(code, message)
    raise AssertionError("an episode has an end")


class WithoutSlash:
    """ASGI middleware that lets a mounted application answer at its path without a trailing slash instead of
    redirecting."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app, self._path = app, path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == self._path:
            scope = {**scope, "path": f"{self._path}/", "raw_path": f"{self._path}/".encode()}
        await self._app(scope, receive, send)
