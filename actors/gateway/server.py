"""The gateway's routes: the protocols of OpenAI and Anthropic, for programs whose key is their episode.

    POST /v1/chat/completions  /v1/responses  /v1/messages  /v1/messages/count_tokens
    GET  /v1/models
    POST /session/reward       {"reward": 0.5}: in place of the grade of its answer

All of them also below /session/KEY, for a client that can't be given a key.
"""

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import isfinite
from typing import Any

from aiohttp import web

from actors.addresses import LOOPBACK
from actors.gateway.model import CURRENT
from actors.gateway.session import Request, Session
from actors.serving.plain import PlainModel
from coa.errors import InfrastructureError, UserError
from coa.json_object import Json
from coa.serving.faults import ApiError, invalid
from coa.serving.keys import key_of

MOST_BYTES = 1 << 28
"""Bytes of a request."""
NAME = "policy"
"""The name of the policy in requests. Another one is taken as well: programs have the names of other models in them."""
SOME_TOOL = ("required", {"type": "any"})
"""`tool_choice` of OpenAI's and of Anthropic's protocols."""
Answer = Json | AsyncIterator[str]
Handler = Callable[[Json, str], Awaitable[Answer]]
"""Takes a body and a salt."""


class Gateway:
    """Serves the policy to programs, and records what it samples for each."""

    def __init__(self, model: PlainModel) -> None:
        self._sessions: dict[str, Session] = {}
        self._handlers: dict[str, Handler] = {
            "chat/completions": model.chat,
            "responses": model.respond,
            "messages": model.message,
            "messages/count_tokens": lambda body, salt: model.count_tokens(body),
        }

    @contextmanager
    def session(self, session: Session) -> Iterator[str]:
        """Opens a session; yields its key."""
        key = secrets.token_urlsafe(24)
        self._sessions[key] = session
        try:
            yield key
        finally:
            session.close()
            del self._sessions[key]

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Serves on this machine; yields the address without a path."""
        app = web.Application(client_max_size=MOST_BYTES)
        for prefix in ("", "/session/{key}"):
            app.router.add_post(f"{prefix}/v1/{{rest:.+}}", self._answer)
            app.router.add_get(f"{prefix}/v1/models", self._models)
            app.router.add_post(f"{prefix}/session/reward", self._reward)
        # A program that hangs up ends its request at the engine.
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, LOOPBACK, 0)
            await site.start()
            host, port = runner.addresses[0][:2]
            yield f"http://{host}:{port}"
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        rest = request.match_info["rest"]
        try:
            session = self._session_of(request)
            if (handler := self._handlers.get(rest)) is None:
                raise ApiError(404, "not_found", f"no path /v1/{rest}; known are {', '.join(self._handlers)}")
            body = await _body(request)
            CURRENT.set(Request(session))
            # What is cached is cached by the order of each turn; vLLM wants a name here.
            answer = await handler(_unforced(body), NAME)
        except ApiError as error:
            return _refusal(request, error)
        except (InfrastructureError, UserError) as error:
            return _refusal(request, ApiError(503, "server_error", f"the policy can't answer: {error}"))
        if isinstance(answer, dict):
            return web.json_response(answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        async for text in answer:
            await response.write(text.encode())
        return response

    async def _models(self, request: web.Request) -> web.Response:
        try:
            self._session_of(request)
        except ApiError as error:
            return _refusal(request, error)
        return web.json_response({"object": "list", "data": [{"id": NAME, "object": "model", "owned_by": "coa"}]})

    async def _reward(self, request: web.Request) -> web.Response:
        try:
            session, body = self._session_of(request), await _body(request)
            reward = body.get("reward")
            if isinstance(reward, bool) or not isinstance(reward, int | float) or not isfinite(reward):
                raise invalid(f"reward: {reward!r}; expected a finite number", "reward")
        except ApiError as error:
            return _refusal(request, error)
        session.reward = float(reward)
        return web.json_response({"reward": session.reward})

    def _session_of(self, request: web.Request) -> Session:
        key = request.match_info.get("key") or key_of(request.headers)
        if (session := self._sessions.get(key)) is None:
            raise ApiError(401, "invalid_api_key", "this key is that of no episode under way")
        return session


async def _body(request: web.Request) -> Json:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise invalid(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise invalid("the body is not a JSON object")
    return body


def _unforced(body: Json) -> Json:
    """The body without what would make its tools shape what is sampled: `strict`, and that one of them has to be
    called. That it has to be a certain one is left: the program reckons with no other reply."""
    free = {name: value for name, value in body.items() if name != "tool_choice" or value not in SOME_TOOL}
    tools = body.get("tools")
    return {**free, "tools": [_without_strict(tool) for tool in tools]} if isinstance(tools, list) else free


def _without_strict(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    free = {name: value for name, value in tool.items() if name != "strict"}
    return {**free, "function": _without_strict(free["function"])} if "function" in free else free


def _refusal(request: web.Request, error: ApiError) -> web.Response:
    path = request.path[request.path.index("/v1") :] if "/v1" in request.path else request.path
    return web.json_response(error.body(path), status=error.status, headers=error.headers())
