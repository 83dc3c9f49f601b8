"""A real MCP server: in a thread, over Streamable HTTP on loopback, or as a program with its standard streams."""

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

PROGRAM = (sys.executable, str(Path(__file__).resolve()))
"""The command of the same server."""


def weather(hanging: threading.Event | None = None, ended: threading.Event | None = None) -> MCPServer:
    """Its tools. `hanging` is set where get_forecast hangs, `ended` where that has ended."""
    server = MCPServer("weather")

    @server.tool()
    async def get_forecast(city: str, days: int = 1) -> str:
        """The weather of the next days."""
        if city == "Atlantis":
            raise ToolError("no such city")
        if city == "Limbo":
            try:
                if hanging is not None:
                    hanging.set()
                await asyncio.sleep(3600)
            finally:
                if ended is not None:
                    ended.set()
        if city == "Pompeii":
            os._exit(1)
        if city == "Babel":
            return "rain " * 400_000
        return f"{city}: rain for {days} days"

    @server.tool()
    def add(a: int, b: int, c: int = 0) -> int:
        """The sum."""
        return a + b + c

    return server


class Served:
    """A server over Streamable HTTP, in a thread, which can be ended and started again at its address."""

    def __init__(self, server: Any = None, **options: Any) -> None:
        """options: those of `streamable_http_app`."""
        self.hanging, self.ended = threading.Event(), threading.Event()
        self._options = options
        self._socket_port = 0
        self.start(server)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._socket_port}/mcp"

    def start(self, server: MCPServer | None = None) -> None:
        import uvicorn  # which the program does without

        app = (server or weather(self.hanging, self.ended)).streamable_http_app(**self._options)
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", self._socket_port))
        self._socket_port = listening.getsockname()[1]
        listening.listen()  # connections wait until the thread takes them
        self._uvicorn = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [listening]}, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        self._thread.join()


if __name__ == "__main__":
    weather().run("stdio")
