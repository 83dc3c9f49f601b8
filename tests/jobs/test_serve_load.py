"""`coa serve` under a mixed load for a long time: every request ends as it should, and memory stays as it is.

    COA_LOAD_S=3600 python -m pytest -m slow tests/jobs/test_serve_load.py

Ten minutes unless the variable says otherwise. Real engine, real HTTP, an untrained model.
"""

import asyncio
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import pytest

from jobs.run.agent_file import write_agent
from tests.jobs.test_serve import AGENT, ASKED, serving
from tests.support.tiny import make_model

LOAD_S = float(os.environ.get("COA_LOAD_S", "600"))
CLIENTS = 16
LOOK_S = 5.0
GROWTH = 1.05
"""Of the memory of all processes of the server, from the second quarter of the time to the last one."""

Send = Callable[[httpx.AsyncClient], Awaitable[None]]


def posted(path: str, status: int = 200, **body: Any) -> Send:
    async def send(client: httpx.AsyncClient) -> None:
        answer = await client.post(path, json={"temperature": 1.0, **body})
        assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:300]}"

    return send


def streamed(path: str, last: str, **body: Any) -> Send:
    """Read to its end, whose last line says `last`."""

    async def send(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", path, json={"temperature": 1.0, "stream": True, **body}) as answer:
            assert answer.status_code == 200, await answer.aread()
            lines = [line async for line in answer.aiter_lines() if line]
        assert last in lines[-1], f"{path}: it ends with {lines[-1]}"

    return send


def left(path: str, **body: Any) -> Send:
    """A client that leaves in the middle."""

    async def send(client: httpx.AsyncClient) -> None:
        async with client.stream("POST", path, json={"temperature": 1.0, "stream": True, **body}) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for _ in answer.aiter_lines():
                return

    return send


async def stored(client: httpx.AsyncClient) -> None:
    """A response, the one that follows it, and both deleted."""
    body = {"model": "demo", "input": "How many cups remain ?", "temperature": 1.0}
    first = (await client.post("/v1/responses", json=body)).raise_for_status().json()
    then = await client.post("/v1/responses", json={**body, "previous_response_id": first["id"]})
    for made in (first, then.raise_for_status().json()):
        (await client.get(f"/v1/responses/{made['id']}")).raise_for_status()
        (await client.delete(f"/v1/responses/{made['id']}")).raise_for_status()


PLAIN: dict[str, Any] = {"model": "demo:plain", "max_tokens": 32}
KINDS: dict[str, Send] = {
    "chat, agent": posted("/v1/chat/completions", model="demo", messages=ASKED),
    "chat, agent, streamed": streamed("/v1/chat/completions", "[DONE]", model="demo", messages=ASKED),
    "chat, plain": posted("/v1/chat/completions", messages=ASKED, **PLAIN),
    "chat, plain, streamed": streamed("/v1/chat/completions", "[DONE]", messages=ASKED, **PLAIN),
    "completion": posted("/v1/completions", prompt="How many", **PLAIN),
    "messages": posted("/v1/messages", model="demo", max_tokens=400, messages=ASKED),
    "responses, streamed": streamed("/v1/responses", "[DONE]", model="demo", input="How many cups remain ?"),
    "responses, stored": stored,
    "left": left("/v1/chat/completions", model="demo", messages=ASKED),
    "no such model": posted("/v1/chat/completions", 404, model="nobody", messages=ASKED),
    "no messages": posted("/v1/chat/completions", 400, model="demo", messages=[]),
}


async def load(url: str, until: float, done: Counter[str]) -> None:
    numbers = itertools.count()
    names = list(KINDS)
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:

        async def one_after_another() -> None:
            while time.monotonic() < until:
                name = random.Random(next(numbers)).choice(names)
                await KINDS[name](client)
                done[name] += 1

        await asyncio.gather(*(one_after_another() for _ in range(CLIENTS)))


def memory(server: psutil.Process) -> float:
    """MiB of all processes of the server; pages that they share count once for each who has them."""
    found = 0
    for process in (server, *server.children(recursive=True)):
        with suppress(psutil.Error):
            found += process.memory_info().rss
    return found / 2**20


@pytest.mark.slow
def test_under_a_mixed_load_no_request_fails_and_memory_stays_as_it_is(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    model = make_model(tmp_path / "demo" / "model")
    write_agent(model, AGENT)
    done: Counter[str] = Counter()
    seen: list[float] = []

    async def go(url: str, server: psutil.Process) -> None:
        async def look() -> None:
            while True:
                seen.append(memory(server))
                await asyncio.sleep(LOOK_S)

        looking = asyncio.ensure_future(look())
        await load(url, time.monotonic() + LOAD_S, done)
        looking.cancel()

    with serving(model, "load") as (url, pid):
        asyncio.run(go(url, psutil.Process(pid)))
        assert httpx.get(f"{url}/v1/load").json()["episodes"] == 0
    quarter = len(seen) // 4
    before, after = median(seen[quarter : 2 * quarter]), median(seen[3 * quarter :])
    record_property("requests", dict(done))
    record_property("memory_mib", [round(one) for one in seen])
    print(f"{sum(done.values())} requests in {LOAD_S:.0f} s, {before:.0f} -> {after:.0f} MiB: {dict(done)}")
    assert set(done) == set(KINDS)
    assert after <= GROWTH * before
