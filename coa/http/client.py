"""An HTTP client for tools, with limits: one shared session, and retries with exponential back-off and full jitter.

There are two kinds of requests, since a missing answer means different things. `get` and `post` are for the run's own
services and raise `ToolDown` if there is no usable reply. `fetch` is for other servers, such as that of a page that the
policy chose: it raises `NoReply`, and the caller decides what that means.

    retried          connection refused or reset, a busy resolver, an incomplete body, 408, 425, 429, 500, 502, 503,
                     504, and, fewer times, a timeout
    not retried      other statuses, an unknown host, TLS errors, an address that is not public, an answer that is not
                     HTTP
"""

import asyncio
import errno
import os
import random
import re
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
from coa.http.addresses import NotPublic, redact
from coa.http.proxies import proxy_of
from coa.http.text import decode, quoted
from coa.http.unpacking import ACCEPTED, BadPacking, Unpacker
from coa.unicode import whole

Result = TypeVar("Result")

TRY_AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
TIMEOUT = "timeout"
OUT_OF_SOCKETS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of this machine when it opens a connection, for which the server is not at fault."""
NO_HOST = "no such host"
NO_ROUTE = "no route"
NO_RESOLVER = "no resolver"
CUT = "the answer broke off"
_SECONDS = re.compile(r"[0-9]++(?:\.[0-9]*+)?|\.[0-9]++")
HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; chain-of-agents)", "Accept-Encoding": ACCEPTED}

FAR_ADDRESS = ("192.0.2.1", 9)
"""An address reserved for documentation; nothing is sent to it."""
KNOWN_NAME = "example.com"
"""A name reserved by IANA: a working resolver resolves it, or answers at once that it does not exist."""


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
    """No attempt got a usable reply; the text is the reason."""

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
        *,
        proxies: bool = True,
    ) -> None:
        """draw: draws uniformly from [0, 1), for the jitter. proxies: whether requests go through the proxies that the
        environment names (`coa.http.proxies`), which then resolve the names of hosts."""
        self.config = config
        self.counts: Counter[str] = Counter()
        """Counts of `attempts`, of `retries`, and of retries by reason, as `retries: REASON`."""
        self._connector, self._sleep, self._draw, self._proxies = connector, sleep, draw, proxies
        self._session: aiohttp.ClientSession | None = None

    async def get(self, url: str | URL, headers: Mapping[str, str] | None = None) -> Reply:
        """The reply of one of the run's own services; raises ToolDown if there is no usable one."""
        return await self._ours("GET", url, None, headers)

    async def post(self, url: str | URL, body: object, headers: Mapping[str, str] | None = None) -> Reply:
        """The reply of one of the run's own services to `body`, sent as JSON; raises ToolDown if there is no usable
        one."""
        return await self._ours("POST", url, body, headers)

    async def fetch(self, url: str | URL) -> Reply:
        """The reply of any other server; raises NoReply if there is no usable one, and ToolDown if this machine has no
        network."""
        try:
            return await self._request("GET", url, None, None)
        except NoReply as error:
            # Errors alone are ambiguous: the network is also unreachable for an IPv6 address if only IPv4 is set up,
            # and a resolver also answers "try again later" for a domain whose own servers are broken.
            here = ""
            if error.reason == NO_ROUTE and not has_route():
                here = "no route leads out"
            if error.reason == NO_RESOLVER and not await resolves():
                here = "names are not resolved"
            if not here:
                raise
            if not self._proxies and proxy_of(URL(url)):
                here += "; pages of other servers are not fetched through a proxy, but by a reader (tools.crawl.reader)"
            raise ToolDown(f"no connection can be made here: {here}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _ours(self, method: str, url: str | URL, body: object, headers: Mapping[str, str] | None) -> Reply:
        try:
            return await self._request(method, url, body, headers)
        except NoReply as error:
            raise ToolDown(f"{redact(str(url))}: {error}") from error

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
        session, proxy = self._open(), proxy_of(URL(url)) if self._proxies else None
        try:
            async with session.request(
                method, url, proxy=proxy, json=body, headers=headers, allow_redirects=False
            ) as response:
                data = await self._read(response)
        except TimeoutError:
            raise NoReply(TIMEOUT, f"nothing within {self.config.timeout_s:g} s", again=True) from None
        except UnicodeError:  # an invalid host name, such as one with a label of 64 letters
            raise NoReply("no host", NO_HOST) from None
        except BadPacking as error:
            raise NoReply("packing", f"the answer {error}") from None
        except aiohttp.ClientError as error:
            if isinstance(error, OSError) and error.errno in OUT_OF_SOCKETS:
                raise ToolDown(f"no connection can be made here: {os.strerror(error.errno)}") from None
            # Raised without its cause, which contains the request's headers and so keys.
            raise _explain(error, proxy) from None
        return Reply(
            status=response.status,
            content_type=whole(response.content_type),
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
            # aiohttp itself would retry a GET after a reset without counting it.
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

    retry_after({"Retry-After": "1.5"}, now) == 1.5
    """
    value = headers.get("Retry-After", "").strip()
    if _SECONDS.fullmatch(value):
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


def _explain(error: aiohttp.ClientError, proxy: URL | None) -> NoReply:
    why = _reason(error)
    if proxy is None:
        return why
    return NoReply(why.reason, f"{why} (through the proxy {redact(str(proxy))})", again=why.again)


def _reason(error: aiohttp.ClientError) -> NoReply:
    match error:
        case aiohttp.ClientHttpProxyError():
            return NoReply("proxy", f"refused with status {error.status}", again=error.status in TRY_AGAIN)
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


def has_route() -> bool:
    """Whether this machine has a route to the internet (IPv4)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(FAR_ADDRESS)  # of a datagram socket, which only looks up the route
        except OSError:
            return False
    return True


async def resolves() -> bool:
    """Whether names can be resolved on this machine."""
    try:
        await asyncio.get_running_loop().getaddrinfo(KNOWN_NAME, None)
    except socket.gaierror as error:
        return error.errno != socket.EAI_AGAIN
    return True
