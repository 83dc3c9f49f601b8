"""The server's routes: authentication, the limit of bodies, dispatch to the protocols' handlers, and errors; with what
/openapi.json says of them."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, Request, params
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actors.serving.api.chat import ChatApi
from actors.serving.api.messages import MessagesApi
from actors.serving.api.responses import ResponsesApi
from actors.serving.api.sse import to_json
from actors.serving.course import Course
from actors.serving.gate import Caller
from actors.serving.mcp import McpApp, WithoutSlash
from actors.serving.metrics import CountedRequests
from actors.serving.server import Server
from coa.concurrency import Work
from coa.json_object import Json
from coa.serving.faults import ApiError, invalid_form
from coa.serving.keys import key_of
from coa.serving.limits.metering import ChunkMeter, MessageMeter, Meter, tokens_of
from coa.serving.parameters import Protocol, check_model
from coa.serving.protocols.schemas import CountTokens, CreateChat, CreateCompletion, CreateMessage, CreateResponse
from coa.serving.requests import explicit_fields
from coa.serving.resumption import HEADER, origin_in, seed_of

LOOPBACK = ("127.0.0.1", "::1", "localhost")
HTTP_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}
WEB = Path(__file__).parent / "web"

STREAMS: dict[int | str, Json] = {200: {"content": {"text/event-stream": {}}}}
"""`responses` argument of a route whose answer may be a stream."""


class Answer(JSONResponse):
    def render(self, content: object) -> bytes:
        return to_json(content).encode()


def make_app(server: Server, prepare: Callable[[], Awaitable[None]] | None = None, host: str = "127.0.0.1") -> FastAPI:
    """The application of one replica. prepare: called before the first request. host: address at which it is served."""
    mcp = McpApp(server, host)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if prepare is not None:
            await prepare()
        async with mcp.running():
            yield

    app = FastAPI(
        title="Chain-of-Agents",
        version="1",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={"default": told_as(OpenaiError)},
    )
    if host in LOOPBACK:
        # Against DNS rebinding: requests from a foreign page that resolves to this machine carry another host name.
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(LOOPBACK))
    app.add_middleware(BodyLimit, limit=int(server.config.max_request_mib * 2**20))
    app.add_middleware(CountedRequests, metrics=server.agent.metrics)
    app.mount("/mcp", mcp.app)
    app.add_middleware(WithoutSlash, path="/mcp")

    asks, knows = (Depends(_caller(find, server.gate.know)) for find in (server.gate.admit, server.gate.know))
    _answers(app, server, asks, knows)
    _responses(app, server, asks, knows)
    _state(app, server, knows)
    # Each file has its own route, so that no other file of the folder is served.
    for path, file, kind in (
        ("/", "page.html", "text/html"),
        ("/page.css", "page.css", "text/css"),
        ("/page.js", "page.js", "text/javascript"),
    ):
        app.add_api_route(path, _page(WEB / file, kind), response_model=None, include_in_schema=False)
    _errors(app)
    describe(app, server.names)
    return app


def _caller(
    find: Callable[[str], Awaitable[Caller]], know: Callable[[str], Awaitable[Caller]]
) -> Callable[[Request], Awaitable[Caller]]:
    """A dependency that gives the request's Caller. find: method of the gate that is called with the request's key;
    know: that for a request that was counted before."""

    async def caller(request: Request) -> Caller:
        origin = origin_in(request.headers.get(HEADER))
        who = await (know if origin.again else find)(key_of(request.headers))
        return replace(who, course=Course(origin))

    return caller


def _answers(app: FastAPI, server: Server, asks: params.Depends, knows: params.Depends) -> None:
    """Routes that generate an answer, or count what one would read."""
    chat_api, messages_api = ChatApi(server), MessagesApi(server)

    @app.post("/v1/chat/completions", response_model=None, responses=STREAMS)
    async def chat(body: CreateChat, who: Annotated[Caller, asks]) -> Response:
        if server.target(body.model).plain:
            return await _plain(Protocol.chat, server.plain.chat, explicit_fields(body), server, who, ChunkMeter)
        if body.stream:
            return _stream(await chat_api.stream_chat(body, who), who)
        return Answer(await chat_api.chat(body, who))

    @app.post("/v1/completions", response_model=None, responses=STREAMS)
    async def completions(body: CreateCompletion, who: Annotated[Caller, asks]) -> Response:
        if server.target(body.model).plain:
            return await _plain(
                Protocol.completions, server.plain.complete, explicit_fields(body), server, who, ChunkMeter
            )
        if body.stream:
            return _stream(await chat_api.stream_complete(body, who), who)
        return Answer(await chat_api.complete(body, who))

    @app.post("/v1/messages", response_model=None, responses={**STREAMS, "default": told_as(AnthropicError)})
    async def messages(body: CreateMessage, who: Annotated[Caller, asks]) -> Response:
        if server.target(body.model).plain:
            return await _plain(
                Protocol.messages, server.plain.message, explicit_fields(body), server, who, MessageMeter
            )
        if body.stream:
            return _stream(await messages_api.stream(body, who), who)
        return Answer(await messages_api.create(body, who))

    @app.post("/v1/messages/count_tokens", response_model=None, responses={"default": told_as(AnthropicError)})
    async def count_tokens(body: CountTokens, who: Annotated[Caller, knows]) -> Response:
        if server.target(body.model).plain:
            check_model(Protocol.messages, explicit_fields(body))
            return Answer(await server.plain.count_tokens(explicit_fields(body)))
        return Answer(await messages_api.count_tokens(body))


def _responses(app: FastAPI, server: Server, asks: params.Depends, knows: params.Depends) -> None:
    """Routes of the Responses API; those for earlier responses do not count against a key's quota."""
    api = ResponsesApi(server)

    @app.post("/v1/responses", response_model=None, responses=STREAMS)
    async def responses(body: CreateResponse, who: Annotated[Caller, asks]) -> Response:
        if body.stream:
            return _stream(await api.stream(body, who), who)
        return Answer(await api.create(body, who))

    @app.get("/v1/responses/{id}", response_model=None)
    async def retrieve(id: str, who: Annotated[Caller, knows], stream: bool = False) -> Response:
        return Answer(await api.stored(id, who, stream=stream))

    @app.post("/v1/responses/{id}/cancel", response_model=None)
    async def cancel(id: str, who: Annotated[Caller, knows]) -> Response:
        return Answer(await api.cancel(id, who))

    @app.delete("/v1/responses/{id}", response_model=None)
    async def delete(id: str, who: Annotated[Caller, knows]) -> Response:
        return Answer(await api.delete(id, who))


def _state(app: FastAPI, server: Server, knows: params.Depends) -> None:
    """Routes for models, load, metrics and health."""

    @app.get("/v1/models", response_model=None)
    async def models(who: Annotated[Caller, knows]) -> Response:
        return Answer(server.models())

    @app.get("/v1/models/{name:path}", response_model=None)
    async def model(name: str, who: Annotated[Caller, knows]) -> Response:
        return Answer(server.model(name))

    @app.get("/v1/load", response_model=None)
    async def load(who: Annotated[Caller, knows]) -> Response:
        return Answer({"episodes": server.agent.under_way})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        server.agent.metrics.version.set(await server.version())
        return Response(server.agent.metrics.text(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz", response_class=PlainTextResponse)
    async def healthz() -> Response:
        return PlainTextResponse("ok\n")

    @app.get("/readyz", response_model=None)
    async def readyz() -> Response:
        return Answer({"ready": True, "version": await server.version()})


def _page(file: Path, kind: str) -> Callable[[], Awaitable[Response]]:
    """A route for a file that is read once. Its policy lets the page load only files of this server, and forbids
    framing."""
    content = file.read_bytes()
    policy = "default-src 'self'; img-src data:; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'"
    headers = {"Content-Security-Policy": policy}

    async def page() -> Response:
        return Response(content, media_type=kind, headers=headers)

    return page


async def _plain(
    protocol: Protocol,
    ask: Callable[[Json, str], Work[Json | AsyncIterator[str]]],
    body: Json,
    server: Server,
    who: Caller,
    metered: Callable[[Json], Meter],
) -> Response:
    """The answer of the model without tools, whole or as a stream; its tokens count against the key's quota."""
    check_model(protocol, body)
    if protocol is not Protocol.messages and body.get("stream") and body.get("seed") is None:
        body = {**body, "seed": seed_of(who.course.origin)}  # so that another replica makes the same stream
    meter = metered(body) if who.metered and body.get("stream") else None
    reserved = server.max_tokens * (body.get("n") or 1)
    answer = await server.gate.reserved(who, reserved, ask(body if meter is None else meter.body, who.salt))
    if isinstance(answer, Mapping):
        server.gate.spend(who, tokens_of(answer.get("usage") or {}), reserved=reserved)
        return Answer(answer)
    if meter is None:
        return StreamingResponse(answer, media_type="text/event-stream")

    async def metered_stream() -> AsyncIterator[str]:
        try:
            async for text in answer:
                if told := meter.take(text):
                    yield told
        finally:
            server.gate.spend(who, meter.tokens, reserved=reserved)

    return StreamingResponse(metered_stream(), media_type="text/event-stream")


def _stream(events: AsyncGenerator[str], who: Caller) -> Response:
    return StreamingResponse(
        who.course.noted(events), media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
    )


def _errors(app: FastAPI) -> None:
    def respond(request: Request, error: ApiError) -> Response:
        return Answer(error.body(request.url.path), error.status, error.headers())

    async def api(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        return respond(request, error)

    async def form(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return respond(request, invalid_form(error))

    async def route(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = HTTP_CODES.get(error.status_code, "invalid_value")
        return respond(request, ApiError(error.status_code, code, f"{request.url.path}: {error.detail}"))

    async def defect(request: Request, error: Exception) -> Response:
        """Answers an unexpected exception; the traceback goes to the log only."""
        return respond(request, ApiError(500, "server_error", "the server failed at this request"))

    app.add_exception_handler(ApiError, api)
    app.add_exception_handler(RequestValidationError, form)
    app.add_exception_handler(HTTPException, route)
    app.add_exception_handler(Exception, defect)


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


class Fault(BaseModel):
    type: str
    message: str


class OpenaiFault(Fault):
    param: str | None
    code: str


class OpenaiError(BaseModel):
    """Body of an error in OpenAI's protocols (`ApiError.openai`)."""

    error: OpenaiFault


class AnthropicError(BaseModel):
    """Body of an error in Anthropic's protocol (`ApiError.anthropic`)."""

    type: str
    error: Fault


def told_as(kind: type[BaseModel]) -> Json:
    """Description of a route's errors, which all have the same form."""
    return {"model": kind, "description": "The request can't be met."}


def describe(app: FastAPI, models: Sequence[str]) -> None:
    """Adds the model names to the schema. models: names that requests may use."""

    def openapi() -> Json:
        described = FastAPI.openapi(app)
        for schema in described["components"]["schemas"].values():
            if "model" in schema.get("properties", ()):
                schema["properties"]["model"]["enum"] = list(models)
        return described

    app.openapi = openapi
