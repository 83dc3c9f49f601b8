"""A language model's endpoint as a test needs it: says what it is told to, fails when it is told to, and keeps a log.

    async with serving(Script(latency_s=0.2, faults=("1-2=500",))) as endpoint:        in this process
        ...; [seen.outcome for seen in endpoint.seen]

    with EndpointProcess("--latency", "0.2", "--log", path) as process:                in one of its own
        ...; process.kill(); process.start(); read_log(path)                           the same port again

    python -m tests.support.endpoints --port 0 --latency 0.2 --concurrent 64 --fault 3=429:2   prints {"url": ..} first

A fault is WHICH=WHAT. WHICH, of the requests for completions, counted from 1: `3`, `2-5`, `*` or `/20`, which is
every 20th. WHAT:

    reset        closes the connection by a reset            malformed   200 with half a JSON object
    gone:2       ends all connections, refuses them for 2 s  half        half of the announced body
    slow:1.5     answers, 1.5 s later than it would          none        200 without choices
    500          that status; 429:2 with Retry-After: 2      empty       a completion without text
    error        200 with {"error": ..}                      no_usage    a completion that counts no tokens
    context      400, the context is too long                abort       a text that the server broke off
    spent        429, the quota is spent                     thinking    empty, cut off by its length
    calls        a call of a tool in place of text

GET /log gives what came so far (`Seen`), GET /stats its counts; GET /v1/models and /health answer as servers do.
"""

import argparse
import asyncio
import hashlib
import importlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from tests.support.virtual_time import LeapingLoop, leap

Messages = Sequence[Mapping[str, Any]]
Reply = Callable[[Messages, int | None], str | Mapping[str, Any]]
"""A reply's text, or its fields."""
ROOT = Path(__file__).parents[2]
CONTEXT = "This model's maximum context length is 512 tokens. However, your messages resulted in 900 tokens."


def echo(messages: Messages, seed: int | None) -> str:
    """A reply that depends on all that a reply may depend on."""
    return f"seed {seed}, {len(messages)} messages: {messages[-1]['content']}"


def request_id(body: Mapping[str, Any]) -> str:
    """Equal for equal requests."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]


def tokens_of(text: str) -> int:
    """As this server counts them."""
    return -(-len(text) // 4)


@dataclass(frozen=True, slots=True)
class Fault:
    """`Fault.parse("2-5=429:1")`"""

    first: int
    last: float
    every: int
    kind: str
    value: float | None = None

    @classmethod
    def parse(cls, rule: str) -> "Fault":
        which, _, what = rule.partition("=")
        kind, _, value = what.partition(":")
        assert kind.isdecimal() or kind in KINDS, rule
        first, _, last = which.partition("-")
        match which[0]:
            case "*":
                span = (1, float("inf"), 1)
            case "/":
                span = (int(which[1:]), float("inf"), int(which[1:]))
            case _:
                span = (int(first), int(last or first), 1)
        return cls(*span, kind, float(value) if value else None)

    def meets(self, number: int) -> bool:
        return self.first <= number <= self.last and (number - self.first) % self.every == 0


KINDS = frozenset(
    ("reset", "gone", "slow", "half", "malformed", "none", "no_usage", "abort", "error", "context", "spent")
) | {"empty", "thinking", "calls"}


@dataclass(frozen=True, kw_only=True)
class Script:
    reply: Reply = echo
    latency_s: float = 0.0
    concurrent: int = 0
    """Completions at the same time; 0 is no limit."""
    together: int = 0
    """No answer is given before so many requests have come."""
    queues: bool = True
    """Whether what is above `concurrent` waits; else it gets 429."""
    faults: Sequence[str] = ()
    """As WHICH=WHAT; the first that meets a request counts."""
    key: str = ""
    """Without it in a request's header the answer is 401; empty asks for none."""
    log: Path | None = None
    """A file that lines are added to as they come, so that they outlive a kill."""


@dataclass(slots=True, kw_only=True)
class Seen:
    """One request for a completion."""

    number: int
    id: str
    """`request_id` of its body."""
    arrived: float
    """As `time.time()`."""
    finished: float | None = None
    """When its answer was ready to send; None while it is under way, and for good where the server was killed."""
    outcome: str = ""
    """The status sent, or the fault: "200", "reset"; empty while it is under way."""
    process: int


class ScriptedEndpoint:
    """`url` after `start()`; what came is in `seen`, with bodies and headers beside it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._faults = [Fault.parse(rule) for rule in script.faults]
        self._permits = asyncio.Semaphore(script.concurrent) if script.concurrent else None
        self._log = os.open(script.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if script.log else None
        self._coming_back: asyncio.Task[None] | None = None
        self._arrivals = asyncio.Condition()
        self.seen: list[Seen] = []
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.peak = 0
        """Completions under way, those that wait not counted; the most there were."""
        app = web.Application(client_max_size=1 << 30)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._complete),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/log", self._answer_log),
                web.get("/stats", self._answer_stats),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self, port: int = 0) -> None:
        await self._runner.setup()
        await self._listen(port)
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._coming_back is not None:
            self._coming_back.cancel()
        await self._runner.cleanup()
        if self._log is not None:
            os.close(self._log)

    async def arrived(self, count: int) -> None:
        """Returns once so many requests have come."""
        async with self._arrivals:
            await self._arrivals.wait_for(lambda: len(self.seen) >= count)

    def stats(self) -> dict[str, Any]:
        outcomes = Counter(seen.outcome for seen in self.seen if seen.outcome)
        counts = {"requests": len(self.seen), "distinct": len({seen.id for seen in self.seen})}
        return {**counts, "running": self.running, "peak": self.peak, "outcomes": dict(outcomes)}

    async def _listen(self, port: int) -> None:
        await web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True, backlog=1024).start()

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        seen = Seen(number=len(self.seen) + 1, id=request_id(body), arrived=time.time(), process=os.getpid())
        self.seen.append(seen)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self._note(seen)
        async with self._arrivals:
            self._arrivals.notify_all()
        fault = next((fault for fault in self._faults if fault.meets(seen.number)), None)
        if self._script.key and request.headers.get("Authorization") != f"Bearer {self._script.key}":
            return self._end(seen, "401", _error(401, f"wrong key: {request.headers.get('Authorization')}"))
        if self._permits is None:
            return await self._within(request, body, seen, fault)
        if not self._script.queues and self._permits.locked():
            return self._end(seen, "429", _error(429, "too many at once"))
        async with self._permits:
            return await self._within(request, body, seen, fault)

    async def _within(
        self, request: web.Request, body: Mapping[str, Any], seen: Seen, fault: Fault | None
    ) -> web.StreamResponse:
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.arrived(self._script.together)
            await asyncio.sleep(self._script.latency_s)
            if fault is not None and fault.kind == "slow":
                if isinstance(asyncio.get_running_loop(), LeapingLoop):
                    leap(fault.value or 0.0)
                await asyncio.sleep(fault.value or 0.0)
                fault = None
            answer = self._answer(body)
            if fault is None:
                return self._end(seen, "200", web.json_response(answer))
            return self._end(seen, fault.kind, await self._fail(request, fault, answer))
        finally:
            self.running -= 1

    def _answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        said = self._script.reply(body["messages"], body.get("seed"))
        fields = {"content": said} if isinstance(said, str) else dict(said)
        reply, limit = str(fields.get("content") or ""), body.get("max_tokens")
        cut = limit is not None and tokens_of(reply) > limit
        text = reply[: limit * 4] if limit is not None else reply
        prompt = sum(tokens_of(str(message.get("content"))) for message in body["messages"])
        return {
            "id": "chatcmpl-0",
            "object": "chat.completion",
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", **fields, "content": text},
                    "finish_reason": "length" if cut else "stop",
                }
            ],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": tokens_of(text),
                "total_tokens": prompt + tokens_of(text),
            },
        }

    async def _fail(self, request: web.Request, fault: Fault, answer: dict[str, Any]) -> web.StreamResponse:
        choice = answer["choices"][0]
        match fault.kind:
            case "reset":
                _reset(request.transport)
                return web.Response()
            case "gone":
                await self._go(fault.value or 0.0)
                return web.Response()
            case "half":
                return await _half(request, json.dumps(answer).encode())
            case "malformed":
                return web.Response(text=json.dumps(answer)[:-9], content_type="application/json")
            case "none":
                answer["choices"] = []
            case "empty":
                choice["message"]["content"] = ""
            case "thinking":
                choice |= {"message": {"role": "assistant", "content": None}, "finish_reason": "length"}
            case "calls":
                calls = [{"id": "c", "type": "function", "function": {"name": "find", "arguments": "{}"}}]
                choice |= {"message": {"role": "assistant", "tool_calls": calls}, "finish_reason": "tool_calls"}
            case "no_usage":
                del answer["usage"]
            case "abort":
                choice["finish_reason"] = "abort"
            case "error":
                answer = {"error": {"message": "the model is overloaded", "code": 502}}
            case "context":
                return _error(400, CONTEXT)
            case "spent":
                return _error(429, "check your plan", code="insufficient_quota")
            case status:
                return _error(int(status), f"told to say {status}", fault.value)
        return web.json_response(answer)

    async def _go(self, seconds: float) -> None:
        for site in tuple(self._runner.sites):
            await site.stop()
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            _reset(connection.transport)

        async def come_back() -> None:
            await asyncio.sleep(seconds)
            await self._listen(self.port)

        self._coming_back = asyncio.create_task(come_back())

    def _end(self, seen: Seen, outcome: str, response: web.StreamResponse) -> web.StreamResponse:
        seen.finished, seen.outcome = time.time(), outcome
        self._note(seen)
        return response

    def _note(self, seen: Seen) -> None:
        if self._log is not None:
            os.write(self._log, json.dumps(asdict(seen)).encode() + b"\n")

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _answer_log(self, _: web.Request) -> web.Response:
        return web.json_response([asdict(seen) for seen in self.seen])

    async def _answer_stats(self, _: web.Request) -> web.Response:
        return web.json_response(self.stats())


def _error(status: int, message: str, retry_after_s: float | None = None, code: int | str = 0) -> web.Response:
    headers = {} if retry_after_s is None else {"Retry-After": f"{retry_after_s:g}"}
    error = {"error": {"message": message, "type": "scripted", "code": code or status}}
    return web.json_response(error, status=status, headers=headers)


def _reset(transport: asyncio.BaseTransport | None) -> None:
    """Closed with nothing lingering, a connection ends by a reset."""
    if isinstance(transport, asyncio.Transport):
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()


async def _half(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": str(len(body))})
    await response.prepare(request)
    await response.write(body[: len(body) // 2])
    assert request.transport is not None
    request.transport.close()
    return response


@asynccontextmanager
async def serving(script: Script | None = None, port: int = 0) -> AsyncIterator[ScriptedEndpoint]:
    endpoint = ScriptedEndpoint(script or Script())
    await endpoint.start(port)
    try:
        yield endpoint
    finally:
        await endpoint.stop()


def read_log(path: Path) -> list[Seen]:
    """The requests in a log, of every process that wrote to it, as they came; each as it was last told of."""
    seen: dict[tuple[int, int], Seen] = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        request = Seen(**json.loads(line))
        seen[request.process, request.number] = request
    return list(seen.values())


def wait_for_log(path: Path, count: int) -> list[Seen]:
    """The requests in a log, once there are so many."""
    while len(seen := read_log(path)) < count:
        time.sleep(0.01)
    return seen


class EndpointProcess:
    """The server in a process of its own, at one port for as long as this object lives."""

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self, *more: str) -> None:
        """Returns once it answers. more: arguments that stand above those it was made with."""
        command = [sys.executable, "-m", "tests.support.endpoints", "--port", str(self.port), *self._arguments, *more]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = json.loads(self._process.stdout.readline())["port"]

    def kill(self) -> None:
        """By SIGKILL: nothing is finished, nobody is told."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.endpoints", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds")
    parser.add_argument("--concurrent", type=int, default=0, help="completions at the same time; 0 is no limit")
    parser.add_argument("--together", type=int, default=0, help="no answer before so many requests have come")
    parser.add_argument("--over", choices=("queue", "refuse"), default="queue", help="what becomes of more")
    parser.add_argument("--fault", action="append", default=[], help="WHICH=WHAT, such as 1-3=500 or /20=reset")
    parser.add_argument("--reply", default="tests.support.endpoints:echo", help="module:function of (messages, seed)")
    parser.add_argument("--key", default="", help="the key that requests must hold")
    parser.add_argument("--log", type=Path, help="a JSONL file that is added to")
    options = parser.parse_args(arguments)
    module, _, name = options.reply.partition(":")
    script = Script(
        reply=getattr(importlib.import_module(module), name),
        latency_s=options.latency,
        together=options.together,
        concurrent=options.concurrent,
        queues=options.over == "queue",
        faults=options.fault,
        key=options.key,
        log=options.log,
    )

    async def run() -> None:
        async with serving(script, options.port) as endpoint:
            print(json.dumps({"url": endpoint.url, "port": endpoint.port, "pid": os.getpid()}), flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
