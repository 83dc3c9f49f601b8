"""Bounded HTTP for tools: one shared session, quick retries, and `ToolDown` when the other side is not there."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from coa.errors import ToolDown

PAUSES_S = (0.05, 0.1, 0.2)
"""Seconds before each retry."""


@dataclass(frozen=True)
class WebConfig:
    timeout_s: float = 10.0
    """Seconds for one request, from connecting to the last byte."""
    max_bytes: int = 1 << 20
    """What is read of a body; the rest is left."""
    max_chars: int = 8000
    """What is shown of a page."""
    hits: int = 5
    """Results asked of a search."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts that may be crawled beside the search site's own."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    content_type: str
    """Without its parameters: "text/html"."""
    text: str
    location: str
    """Where a redirect points; else empty."""


class Http:
    """The session belongs to the event loop of the first request."""

    def __init__(self, config: WebConfig) -> None:
        self.config = config
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str) -> Reply:
        return await self._request("GET", url)

    async def post(self, url: str, body: object, headers: Mapping[str, str] | None = None) -> Reply:
        return await self._request("POST", url, body, headers)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(
        self, method: str, url: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """One reply, redirects not followed; raises ToolDown if none came or the server failed (5xx)."""
        why = ""
        for pause in (0.0, *PAUSES_S):
            await asyncio.sleep(pause)
            try:
                reply = await self._attempt(method, url, body, headers)
            except TimeoutError as error:
                raise ToolDown(f"{url}: nothing within {self.config.timeout_s:g} s") from error
            except aiohttp.ClientError as error:
                why = str(error) or type(error).__name__
                continue
            if reply.status < 500:
                return reply
            why = f"status {reply.status}"
        raise ToolDown(f"{url}: {why}")

    async def _attempt(self, method: str, url: str, body: object, headers: Mapping[str, str] | None) -> Reply:
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self.config.timeout_s)
            self._session = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        async with self._session.request(
            method, url, json=body, headers=dict(headers or {}), allow_redirects=False
        ) as response:
            data = bytearray()
            while len(data) < self.config.max_bytes and (chunk := await response.content.readany()):
                data += chunk
            return Reply(
                status=response.status,
                content_type=response.content_type,
                text=_decode(bytes(data[: self.config.max_bytes]), response.charset),
                location=response.headers.get("Location", ""),
            )


def _decode(data: bytes, charset: str | None) -> str:
    try:
        return data.decode(charset or "utf-8", errors="replace")
    except LookupError:  # a charset that nobody knows
        return data.decode(errors="replace")
