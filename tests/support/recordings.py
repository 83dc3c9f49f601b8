"""The recorder between an agent and a scripted model, and an agent written with the `openai` client."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from coa.distill.sources.recorder import RecorderConfig, serving
from coa.distill.sources.recorder.records import file_name
from tests.support import servers
from tests.support.imported_runs import PAGES, QUESTION, asks, says

KEY = "sk-of-the-client-0123456789"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "Who ?"}]}
CALL = {"id": "c1", "type": "function", "function": {"name": "wiki_search", "arguments": '{"query": "Vexon Läbs"}'}}
SAID = {"role": "assistant", "content": "Bérg, I think ☃"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "c2"}]}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


async def post(url: str, body: object = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/chat/completions", json=body or ASKED, headers=headers) as response,
    ):
        return response.status, await response.read()


def kept(folder: Path, session: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / file_name(session)).read_text().splitlines()]


def completion(message: Mapping[str, Any]) -> dict[str, Any]:
    finish = "tool_calls" if message.get("tool_calls") else "stop"
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {"id": "1", "object": "chat.completion", "created": 1, "model": "m-1", "choices": [choice], "usage": USAGE}


def events(message: Mapping[str, Any], width: int = 3) -> list[bytes]:
    """The same, streamed: texts and arguments in pieces of `width` characters."""

    def event(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [choice]}
        return f"data: {json.dumps(chunk | more)}\n\n".encode()

    def cut(text: str) -> list[str]:
        return [text[at : at + width] for at in range(0, len(text), width)]

    pieces = [event({"role": "assistant", "content": None})]
    pieces += [event({"content": piece}) for piece in cut(message.get("content") or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        head = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
        pieces.append(event({"tool_calls": [{"index": index, **head}]}))
        pieces += [
            event({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in cut(call["function"]["arguments"])
        ]
    pieces.append(event({}, "tool_calls" if message.get("tool_calls") else "stop"))
    usage = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m-1", "choices": [], "usage": USAGE}
    return [*pieces, f"data: {json.dumps(usage)}\n\n".encode(), b"data: [DONE]\n\n"]


Reply = Mapping[str, Any] | Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Model:
    """A model endpoint that gives the replies of a script, one a call; streamed where it is asked to."""

    replies: list[Reply]
    heads: list[Mapping[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.heads.append(dict(request.headers))
        self.paths.append(request.path_qs)
        if request.method == "GET":
            return web.json_response({"object": "list", "data": [{"id": "m-1", "object": "model"}]})
        self.bodies.append(await request.json())
        reply = self.replies.pop(0)
        if not isinstance(reply, Mapping):
            return await reply(request)
        if not self.bodies[-1].get("stream"):
            return web.json_response(completion(reply))
        return await streamed(request, events(reply))


async def streamed(request: web.Request, pieces: Sequence[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece)
    return response


@asynccontextmanager
async def recording(
    folder: Path, *replies: Reply, key_env: str | None = None, say: Callable[[str], None] = print
) -> AsyncIterator[tuple[str, Model]]:
    """The recorder's base URL, and the model endpoint behind it."""
    model = Model(list(replies))
    async with servers.serving(model.answer) as upstream:
        config = RecorderConfig(upstream=f"{upstream}/v1", folder=folder, key_env=key_env)
        async with serving(config, say=say) as url:
            yield url, model


LOOP = (
    asks("wikipedia_search", {"query": "Vexon Labs"}, "Find the owner, then her town."),
    asks("wikipedia_search", {"query": "Nora Lind"}, "Nora Lind owns it."),
    says("She was born there.\nFinal answer: Berg"),
)


async def agent(url: str, *, stream: bool) -> str:
    """An agent as others write them, on the official client; its last reply."""
    openai = pytest.importorskip("openai")
    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0)
    function = {"name": "wikipedia_search", "parameters": {"type": "object", "properties": {"query": {}}}}
    messages: list[Any] = [
        {"role": "system", "content": "You are a research assistant that looks things up."},
        {"role": "user", "content": f"Answer shortly.\n\nQuestion: {QUESTION}"},
    ]
    while True:
        asked: dict[str, Any] = {
            "model": "m",
            "messages": messages,
            "tools": [{"type": "function", "function": function}],
        }
        if stream:
            content, calls = "", {}
            options = {"include_usage": True}
            async for chunk in await client.chat.completions.create(**asked, stream=True, stream_options=options):
                for delta in [choice.delta for choice in chunk.choices]:
                    content += delta.content or ""
                    for piece in delta.tool_calls or ():
                        call = calls.setdefault(piece.index, {"id": piece.id, "name": piece.function.name, "text": ""})
                        call["text"] += piece.function.arguments or ""
            used = [(call["id"], call["name"], call["text"]) for call in calls.values()]
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
            content = message.content or ""
            used = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls or ()]
        if not used:
            await client.close()
            return content
        echo = [{"id": i, "type": "function", "function": {"name": n, "arguments": text}} for i, n, text in used]
        messages.append({"role": "assistant", "content": content, "tool_calls": echo})
        for key, _, text in used:
            messages.append({"role": "tool", "tool_call_id": key, "content": PAGES[json.loads(text)["query"]]})
