"""An endpoint between an agent and its model, which forwards all calls and records those of three protocols.

    agent ──POST /session/run-1/v1/chat/completions──> recorder ──POST UPSTREAM/chat/completions──> model endpoint
          <──────────── bytes as they come ───────────    │     <──────────────────────────────────
                                                          └──> DIR/run-1.jsonl, a line for each call

    session     /session/ID/v1, or the header X-Session-Id, or else one session for each start of the recorder
    task        /session/ID/task/TASK/v1, or X-Task-Id, or `metadata.task` in the body; may be left out
    recorded    POST /v1/chat/completions, /v1/responses and /v1/messages (Anthropic), failures too; other paths under
                /v1 are only forwarded, and the console says so for each path that something is posted to

A stream that breaks off also breaks off for the agent. If an agent disconnects, the call of the model is cancelled. If
the disk is full, calls are still forwarded, and a warning is shown once.
"""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from coa.distill.sources.recorder.call import BROKEN, GONE, SILENT, UNREACHABLE, Call
from coa.distill.sources.recorder.hiding import keys_of
from coa.distill.sources.recorder.protocols import PROTOCOLS
from coa.distill.sources.recorder.records import append
from coa.distill.sources.recorder.tally import Tally
from coa.errors import DiskFull, UserError
from coa.http.addresses import is_web_address, redact
from coa.http.keys import bearer
from coa.http.proxies import proxy_of
from coa.http.text import quoted

SESSION, TASK = "X-Session-Id", "X-Task-Id"
ANTHROPIC_KEY = "x-api-key"
"""Header of the key in Anthropic's protocol."""
NOT_PASSED_ON = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer"),
        *("transfer-encoding", "upgrade", "host", "content-length", "content-encoding", "accept-encoding", "expect"),
        *(SESSION.lower(), TASK.lower()),
    )
)
"""Headers that are not forwarded: those of one connection, and the recorder's own."""


@dataclass(frozen=True, kw_only=True)
class RecorderConfig:
    upstream: str
    """Base URL of the model endpoint, such as http://127.0.0.1:8000/v1."""
    folder: Path
    key_env: str | None = None
    """Environment variable with the endpoint's key, which replaces the client's key; None forwards the client's
    key."""
    connect_s: float = 10.0
    """Maximum seconds to connect to the model endpoint."""
    silence_s: float = 900.0
    """Maximum seconds without a byte of the endpoint's answer; long, since some endpoints send nothing until a reply is
    complete."""
    max_bytes: int = 1 << 28
    """Maximum bytes of a request."""


class _ClientGone(Exception): ...


class Recorder:
    """The recorder, run by `serving`; its HTTP session belongs to the running event loop."""

    def __init__(
        self, config: RecorderConfig, clock: Callable[[], float] = time.time, say: Callable[[str], None] = print
    ) -> None:
        """say: shows a line to the user. Raises UserError for a bad upstream, key or proxy."""
        if not is_web_address(config.upstream):
            raise UserError(f"--upstream is {redact(config.upstream)}, expected an address such as http://HOST:8000/v1")
        self.config, self._clock, self._say = config, clock, say
        self._reported_full = False
        self.tally = Tally(say)
        self._key, self._proxy = bearer(config.key_env), proxy_of(URL(config.upstream))
        started = datetime.fromtimestamp(clock(), UTC)
        self.session = f"recorded-{started:%Y%m%d-%H%M%S}"
        """The session of calls that name none."""
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),  # as many calls at once as agents make
            timeout=aiohttp.ClientTimeout(None, sock_connect=config.connect_s, sock_read=config.silence_s),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        await self._http.close()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=self.config.max_bytes)
        rest = "v1/{rest:.+}"
        for prefix in ("/", "/session/{session}/", "/task/{task}/", "/session/{session}/task/{task}/"):
            app.router.add_route("*", f"{prefix}{rest}", self._handle)
        app.router.add_route("*", "/{rest:.*}", self._refuse_path)
        return app

    async def _refuse_path(self, request: web.Request) -> web.StreamResponse:
        self.tally.count_unknown(request.method, request.path)
        return _refusal(404, f"no path {request.path} here: base URLs end in /v1, as in /session/NAME/v1")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        rest = _path(request.match_info["rest"])
        body = await request.read()
        call: Call | None = None
        protocol = PROTOCOLS.get(rest) if request.method == "POST" else None
        if protocol is not None:
            try:
                call = Call(protocol, body, self._session_of(request), _task_of(request), self._clock)
            except ValueError as error:
                return _refusal(400, str(error))
        elif request.method == "POST":
            self.tally.passed_on(rest)
        try:
            return await self._pass_on(request, rest, body, call)
        except _ClientGone:
            return _refusal(499, GONE)  # the client has disconnected and does not read this
        finally:
            if call is not None:
                self._keep(request, call)

    async def _pass_on(self, request: web.Request, rest: str, body: bytes, call: Call | None) -> web.StreamResponse:
        url = URL(self.config.upstream.rstrip("/")).joinpath(*rest.split("/")).with_query(request.rel_url.query)
        response: web.StreamResponse | None = None
        try:
            async with self._http.request(
                request.method,
                url,
                data=body or None,
                headers=self._headers(request),
                proxy=self._proxy,
                allow_redirects=False,
            ) as answer:
                response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
                if call is not None:
                    call.answered(answer.status)
                await _to_client(response.prepare(request))
                async for piece in answer.content.iter_any():
                    if call is not None:
                        call.feed(piece)
                    await _to_client(response.write(piece))
        # Failures omit the error's text, which may hold the request's headers and so keys.
        except TimeoutError:
            status, failure = 504, SILENT
        except aiohttp.ClientError:
            status, failure = 502, UNREACHABLE
        else:
            if call is not None:
                call.ended()
                self._keep(request, call)  # before the end, so that a complete reply is recorded when its client has it
            await _to_client(response.write_eof())
            return response
        if call is not None:
            call.ended(failure if response is None else BROKEN)
        if response is None:
            return _refusal(status, failure)
        if request.transport is not None:
            request.transport.close()  # without the end of a complete reply
        return response

    def _session_of(self, request: web.Request) -> str:
        return request.match_info.get("session") or quoted(request.headers.get(SESSION, "")) or self.session

    def _headers(self, request: web.Request) -> Mapping[str, str]:
        headers = _passed_on(request.headers)
        headers["Accept-Encoding"] = "identity"
        if self._key and ANTHROPIC_KEY in headers:
            headers.popall("Authorization", None)
            headers[ANTHROPIC_KEY] = self._key["Authorization"].removeprefix("Bearer ")
        else:
            headers.update(self._key)
        return headers

    def _keep(self, request: web.Request, call: Call) -> None:
        """Records the call, unless it is recorded already."""
        if (record := call.record()) is not None:
            sent = keys_of(request.headers, request.query)
            try:
                append(self.config.folder, record, sent | keys_of(self._key, {}))
                self.tally.recorded(record)
            except DiskFull as full:
                if not self._reported_full:
                    self._say(f"{full}: calls are passed on, and not recorded until there is some")
                self._reported_full = True
                self.tally.without_room += 1


@asynccontextmanager
async def serving(
    config: RecorderConfig, host: str = "127.0.0.1", port: int = 0, say: Callable[[str], None] = print
) -> AsyncIterator[str]:
    """Runs a recorder and yields its base URL; says at the end what was recorded, and what was not.

    port: 0 for any free one. Raises UserError for a port or a folder that can't be used.
    """
    recorder = Recorder(config, say=say)
    # With handler_cancellation, a client that disconnects cancels the call of the model.
    runner = web.AppRunner(recorder.app(), access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    try:
        await runner.setup()
        try:
            config.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{config.folder}: nothing can be recorded there: {error.strerror or error}") from error
        try:
            await web.TCPSite(runner, host, port).start()
        except (OSError, OverflowError) as error:  # OverflowError: no such port
            raise UserError(f"can't listen at {host}:{port}: {getattr(error, 'strerror', None) or error}") from error
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
        await recorder.close()
        recorder.tally.close(config.folder)


async def _to_client(sending: Awaitable[object]) -> None:
    try:
        await sending
    except ConnectionError as error:
        raise _ClientGone from error


def _passed_on(headers: Mapping[str, str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in NOT_PASSED_ON)


def _path(rest: str) -> str:
    """The normalised path, so that no other spelling of a recorded path goes unrecorded: `./a//%62` is `a/b`. Raises
    HTTPNotFound for a path that leads upwards."""
    while (plain := unquote(rest)) != rest:
        rest = plain
    parts = [part for part in rest.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise web.HTTPNotFound
    return "/".join(parts)


def _task_of(request: web.Request) -> str:
    return request.match_info.get("task") or quoted(request.headers.get(TASK, ""))


def _refusal(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message, "type": "recorder"}}, status=status)
