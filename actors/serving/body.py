"""Refuses request bodies that are too large, before they are read completely."""

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """ASGI middleware. A body without Content-Length is counted as it arrives."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        """limit: maximum bytes of a body."""
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        said = dict(scope["headers"]).get(b"content-length", b"")
        heard = int(said) if said.isdigit() else 0

        async def counted() -> Message:
            nonlocal heard
            message = await receive()
            self._check(heard)
            if not said:
                heard += len(message.get("body", b""))
                self._check(heard)
            return message

        return await self._app(scope, counted, send)

    def _check(self, heard: int) -> None:
        if heard > self._limit:
            raise HTTPException(413, f"a request has at most {self._limit} bytes")
