"""An HTTP client for tools, with limits: one shared session, and retries with exponential back-off and full jitter.

There are two kinds of requests, since a missing answer means different things. `get` and `post` are for services of
ours and raise `ToolDown` without a usable reply. `fetch` is for other servers, such as a page that a policy chose: it
raises `NoReply`, and the caller decides what that means.

    tried again      connection refused or reset, a resolver that is busy, half a body, 408, 425, 429, 500, 502,
                     503, 504, and, a smaller number of times, no answer in time
    not tried again  other statuses, an unknown host, TLS errors, an address that is not public, what is not HTTP
"""

import asyncio
import errno
import os
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

import aiohttp
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception
from yarl import URL

from coa.errors import ToolDown
from coa.http.addresses import NotPublic, shown
from coa.http.network import has_route, resolves
from coa.http.text import decode, quoted, well_formed
from coa.http.unpacking import ACCEPTED, BadPacking, Unpacker

Result = TypeVar("Result")

TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
TIMEOUT = "timeout"
OUT_OF_SOCKETS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of this machine when it opens a connection, never the server's fault."""
NO_HOST = "no such host"
NO_ROUTE = "no route"
NO_RESOLVER = "no resolver"
CUT = "the answer broke off"
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; chain-of-agents)", "Accept-Encoding": ACCEPTED}


@dataclass(frozen=True)
class HttpConfig:
    """HTTP requests of tools."""

    timeout_s: float = 10.0
    """Maximum seconds for one attempt, from connecting to the last byte."""
    attempts: int = 4
    """Maximum attempts at a request, including the first."""
    timeouts: int = 2
    """Maximum attempts at a request that may time out."""
    pause_s: float = 0.1
    """Maximum seconds of the pause before the second attempt; it doubles for each further attempt. Each pause is drawn
    at random between 0 and its maximum."""
    max_pause_s: float = 5.0
    """Maximum seconds between two attempts, even if a server asks for a longer pause (Retry-After)."""
    max_bytes: int = 1 << 21
    """Maximum bytes of a decompressed body that are read; the rest is dropped."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    content_type: str
    """The media type without parameters: "text/html"; "application/octet-stream" if the server named none."""
    body: bytes
    """Decompressed body, truncated at `max_bytes`."""
    charset: str
    """The charset of the header Content-Type; empty if it names none."""
    location: str
    """Target of a redirect; else empty."""
    retry_after_s: float = 0.0
    """Pause that the server asks for."""

    @property
    def text(self) -> str:
        return decode(self.body, self.charset)


class NoReply(Exception):
    """No usable reply came in all attempts; the text says why."""

    def __init__(self, reason: str, text: str = "", *, again: bool = False, after_s: float = 0.0) -> None:
        """reason: a short name to count by, such as "refused"; again: whether another attempt may help;
        after_s: the pause that the server asked for."""
        super().__init__(text or reason)
        self.reason, self.again, self.after_s = reason, again, after_s


class Http:
    """An HTTP client. Its session belongs to the event loop of the first request."""

    def __init__(
        self,
        config: HttpConfig,
        connector: Callable[[], aiohttp.BaseConnector] = aiohttp.TCPConnector,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`draw`: draws uniformly from [0, 1), for the jitter."""
        self.config = config
        self.counts: Counter[str] = Counter()
        """Counts of `attempts`, of `retries`, and of retries by reason, as `retries: REASON`."""
        self._connector, self._sleep, self._draw = connector, sleep, draw
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str | URL, headers: Mapping[str, str] | None = None) -> Reply:
        """The reply of a service of ours; raises ToolDown if no usable one comes."""
        return await self._ours("GET", url, None, headers)

    async def post(self, url: str | URL, body: object, headers: Mapping[str, str] | None = None) -> Reply:
        """The reply of a service of ours to `body`, as JSON; raises ToolDown if no usable one comes."""
        return await self._ours("POST", url, body, headers)

    async def fetch(self, url: str | URL) -> Reply:
        """The reply of another party's server; raises NoReply if no usable one comes, and ToolDown if this machine has
        no network."""
        try:
            return await self._request("GET", url, None, None)
        except NoReply as error:
            if error.reason == NO_ROUTE and not has_route():
                raise ToolDown("no connection can be made here: no route leads out") from error
            if error.reason == NO_RESOLVER and not await resolves():
                raise ToolDown("no connection can be made here: names are not resolved") from error
            raise

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ours(self, method: str, url: str | URL, body: object, headers: Mapping[str, str] | None) -> Reply:
        try:
            return await self._request(method, url, body, headers)
        except NoReply as error:
            raise ToolDown(f"{shown(str(url))}: {error}") from error

    async def _request(self, method: str, url: str | URL, body: object, headers: Mapping[str, str] | None) -> Reply:
        """One reply of any status except those of TRY_AGAIN, without following redirects; raises NoReply."""

        async def attempt() -> Reply:
            reply = await self.send(method, url, body, headers)
            if reply.status in TRY_AGAIN:
                raise NoReply(f"status {reply.status}", again=True, after_s=reply.retry_after_s)
            return reply

        return await self.retry(attempt)

    async def retry(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """The result of `attempt`, which is retried after a pause while it raises a NoReply with `again` set."""
        timeouts = 0

        def stop(state: RetryCallState) -> bool:
            nonlocal timeouts
            timeouts += _failure(state).reason == TIMEOUT
            return state.attempt_number >= self.config.attempts or timeouts >= self.config.timeouts

        def pause(state: RetryCallState) -> float:
            return pause_s(self.config, state.attempt_number, self._draw(), _failure(state).after_s)

        def count(state: RetryCallState) -> None:
            self.counts.update(("retries", f"retries: {_failure(state).reason}"))

        retrying = AsyncRetrying(
            retry=retry_if_exception(lambda error: isinstance(error, NoReply) and error.again),
            stop=stop,
            wait=pause,
            before_sleep=count,
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(attempt)

    async def send(self, method: str, url: str | URL, body: object, headers: Mapping[str, str] | None) -> Reply:
        """Sends one request once. Returns its reply, whatever the status; raises NoReply if none can be read."""
        self.counts["attempts"] += 1
        headers = {**HEADERS, **(headers or {})}
        session = self._open()
        try:
            async with session.request(method, url, json=body, headers=headers, allow_redirects=False) as response:
                data = await self._read(response)
        except TimeoutError:
            raise NoReply(TIMEOUT, f"nothing within {self.config.timeout_s:g} s", again=True) from None
        except UnicodeError:  # a host name that cannot be written as one, such as one with a part of 64 letters
            raise NoReply("no host", NO_HOST) from None
        except BadPacking as error:
            raise NoReply("packing", f"the answer {error}") from None
        except aiohttp.ClientError as error:
            if isinstance(error, OSError) and error.errno in OUT_OF_SOCKETS:
                raise ToolDown(f"no connection can be made here: {os.strerror(error.errno)}") from None
            # Without its cause, which holds the headers that were sent, keys among them.
            raise _explain(error) from None
        return Reply(
            status=response.status,
            content_type=well_formed(response.content_type),
            body=data,
            charset=response.charset or "",
            location=quoted(response.headers.get("Location", "")),
            retry_after_s=retry_after(response.headers, datetime.now(UTC)),
        )

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                timeout=aiohttp.ClientTimeout(total=self.config.timeout_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
            # aiohttp itself would retry a GET after a reset, uncounted; retries are made only here.
            self._session._retry_connection = False
        return self._session

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        unpacker = Unpacker(response.headers.get("Content-Encoding", ""), self.config.max_bytes)
        while not unpacker.full and (piece := await response.content.readany()):
            unpacker.add(piece)
        if unpacker.full:
            response.close()
        elif not unpacker.complete:
            raise NoReply("cut", CUT, again=True)
        return unpacker.body


def pause_s(config: HttpConfig, attempt: int, drawn: float, asked_s: float) -> float:
    """Seconds to wait after attempt number `attempt` (from 1). drawn: from [0, 1); asked_s: what the server asked
    for."""
    jitter = drawn * config.pause_s * 2 ** (attempt - 1)
    return min(max(jitter, asked_s), config.max_pause_s)


def retry_after(headers: Mapping[str, str], now: datetime) -> float:
    """The seconds of a Retry-After header, which holds seconds or a date; 0 for a header that holds neither. A date is
    compared with the server's own, where it tells it: our clock may be wrong.

    retry_after({"Retry-After": "3"}, now) == 3.0
    """
    value = headers.get("Retry-After", "")
    if value.strip().isdecimal():
        return float(value)
    then = date_of(value)
    return max(0.0, (then - (date_of(headers.get("Date", "")) or now)).total_seconds()) if then else 0.0


def date_of(value: str) -> datetime | None:
    """The date of a header; None for what is none."""
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    return date.replace(tzinfo=date.tzinfo or UTC)


def _failure(state: RetryCallState) -> NoReply:
    assert state.outcome is not None
    failure = state.outcome.exception()
    assert isinstance(failure, NoReply)
    return failure


def _explain(error: aiohttp.ClientError) -> NoReply:
    match error:
        case aiohttp.ClientSSLError():
            return NoReply("tls", "its certificate or TLS is not valid")
        case aiohttp.ClientConnectorDNSError(os_error=OSError(errno=socket.EAI_AGAIN)):
            return NoReply(NO_RESOLVER, NO_HOST, again=True)
        case aiohttp.ClientConnectorDNSError():
            return NoReply("no host", NO_HOST)
        case aiohttp.ClientConnectorError(os_error=NotPublic()):
            return NoReply("not public", "leads to an address that is not public")
        case aiohttp.ClientConnectorError(os_error=OSError(errno=errno.ECONNREFUSED)):
            return NoReply("refused", "connection refused", again=True)
        case aiohttp.ClientConnectorError(os_error=OSError(errno=errno.ENETUNREACH)):
            return NoReply(NO_ROUTE, "cannot be reached", again=True)
        case aiohttp.ClientConnectorError():
            return NoReply("unreachable", "cannot be reached", again=True)
        case aiohttp.ClientConnectionError():
            return NoReply("reset", "connection closed without an answer", again=True)
        case aiohttp.ClientPayloadError():
            return NoReply("cut", CUT, again=True)
    return NoReply("not http", "the answer is not HTTP")
