"""A client in its own process: sends a server many concurrent streamed requests, and reports the measured times.

    ask("run", url=.., body={..}, questions=[..], at_once=64)

run: all questions, `at_once` of them concurrently. cancel: the time after a client's disconnect until its slot of the
engine is free for the next request, and the time to first token of a request if a slot is free. flood: the time until
all slots serve other clients after `count` clients disconnected at once.
"""

import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import aiohttp

from benchmarks.harness import ROOT
from coa.json_object import Json

PAUSE_S = 0.1
"""After which a request that has no token yet counts as waiting for a slot."""
FREED_S = 0.7
"""After which the slot of a request that was left is free for sure."""
LIMIT_S = 600


def ask(what: str, **spec: Any) -> Json:
    """What the client's process says; raises CalledProcessError where it fails."""
    command = [sys.executable, "-m", "benchmarks.load", what]
    done = subprocess.run(command, input=json.dumps(spec), stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout)


class Stream:
    """One request, read as it comes. `first` has the time of its first text, `task` its tokens."""

    def __init__(self, session: aiohttp.ClientSession, url: str, body: Json) -> None:
        self.began = time.perf_counter()
        self.first: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self.task = asyncio.ensure_future(self._read(session, url, body))

    async def _read(self, session: aiohttp.ClientSession, url: str, body: Json) -> int:
        async with session.post(url, json=body) as answer:
            if answer.status != 200:
                raise SystemExit(f"{answer.status}: {await answer.text()}")
            if not body["stream"]:
                whole = await answer.json()
                self._spoke()
                return whole["usage"]["completion_tokens"]
            tokens = 0
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                chunk = json.loads(line[6:])
                for choice in chunk["choices"]:
                    delta = choice["delta"]
                    if delta.get("content") or delta.get("reasoning"):
                        self._spoke()
                tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
            return tokens

    def _spoke(self) -> None:
        if not self.first.done():
            self.first.set_result(time.perf_counter())

    async def leave(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


class Client:
    def __init__(self, session: aiohttp.ClientSession, url: str, body: Json, questions: Sequence[str]) -> None:
        self._session, self._url, self._body = session, url, body
        self._numbered = enumerate(itertools.cycle(questions))

    def stream(self) -> Stream:
        number, question = next(self._numbered)
        asked = {"messages": [{"role": "user", "content": question}], "seed": number}
        return Stream(self._session, self._url, {**self._body, **asked})


async def run(client: Client, *, questions: Sequence[str], at_once: int, **_: Any) -> Json:
    left, firsts = iter(questions), []

    async def one_after_another() -> int:
        tokens = 0
        for _ in left:
            stream = client.stream()
            tokens += await stream.task
            if stream.first.done():  # a text may be empty
                firsts.append(stream.first.result() - stream.began)
        return tokens

    began = time.perf_counter()
    tokens = sum(await asyncio.gather(*(one_after_another() for _ in range(at_once))))
    return {"tokens": tokens, "seconds": time.perf_counter() - began, "first_s": firsts}


async def cancel(client: Client, *, at_once: int, times: int, **_: Any) -> Json:
    """at_once: the slots of the engine, all of which are taken."""
    taken, waits, firsts = deque(client.stream() for _ in range(at_once)), list[float](), list[float]()
    await asyncio.gather(*(stream.first for stream in taken))
    while len(waits) < times:
        await taken.popleft().leave()
        await asyncio.sleep(FREED_S)
        taken.append(client.stream())
        firsts.append(await taken[-1].first - taken[-1].began)
        waiting = client.stream()
        await asyncio.sleep(PAUSE_S)
        if waiting.first.done() or any(stream.task.done() for stream in taken):
            raise SystemExit("a slot was free before anybody left: the streams are too short")
        began = time.perf_counter()
        leaving = asyncio.ensure_future(taken.popleft().leave())
        waits.append(await waiting.first - began)
        await leaving
        taken.append(waiting)
    await asyncio.gather(*(stream.leave() for stream in taken))
    return {"waits_s": waits, "first_s": firsts}


async def flood(client: Client, *, at_once: int, count: int, **_: Any) -> Json:
    """at_once: the slots of the engine; count: the requests that are left."""
    streams = [client.stream() for _ in range(count)]
    for speaking in itertools.islice(asyncio.as_completed([stream.first for stream in streams]), at_once):
        await speaking
    await asyncio.sleep(10 * PAUSE_S)
    began = time.perf_counter()
    leaving = [asyncio.ensure_future(stream.leave()) for stream in streams]
    others = [client.stream() for _ in range(at_once)]
    await asyncio.gather(*leaving, *(stream.first for stream in others))
    freed = time.perf_counter() - began
    await asyncio.gather(*(stream.leave() for stream in others))
    return {"freed_s": freed}


async def serve_spec(what: str, spec: Json) -> Json:
    limits = aiohttp.ClientTimeout(total=LIMIT_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=limits, connector=connector) as session:
        client = Client(session, spec.pop("url"), spec.pop("body"), spec["questions"])
        return await {"run": run, "cancel": cancel, "flood": flood}[what](client, **spec)


def main() -> None:
    spec, began = json.load(sys.stdin), time.process_time()
    found = asyncio.run(serve_spec(sys.argv[1], spec))
    print(json.dumps({**found, "cpu_s": time.process_time() - began}))


if __name__ == "__main__":
    main()
