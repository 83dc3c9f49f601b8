"""`coa serve` with two replicas under a mixed load for a long time, while engines are killed and a checkpoint comes: no
answer is lost or cut, and memory stays as it is.

    COA_LOAD_S=3600 COA_LOAD_CLIENTS=64 COA_LOAD_KILL_S=300 python -m pytest -s -m slow tests/jobs/test_serve_load.py

Four minutes unless the variables say otherwise. COA_LOAD_MODEL: an agent's model directory instead of an untrained one.
COA_LOAD_REFUSED: share of the requests that may be refused with 429.
Real engines, real HTTP; the client is aiohttp's, since httpx's own pool takes seconds for each of 256 connections.
"""

import asyncio
import itertools
import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import aiohttp
import httpx
import psutil
import pytest

from coa.agent.episode import Grammar
from jobs.run.agent_file import agent_of, write_agent
from tests.jobs.test_follow import make_checkpoint
from tests.jobs.test_serve import AGENT, ASKED, processes, serving
from tests.support.tiny import make_model

LOAD_S = float(os.environ.get("COA_LOAD_S", "240"))
CLIENTS = int(os.environ.get("COA_LOAD_CLIENTS", "16"))
KILL_S = float(os.environ.get("COA_LOAD_KILL_S", "90"))
"""Seconds between two kills of an engine."""
MODEL = os.environ.get("COA_LOAD_MODEL", "")
REFUSED = float(os.environ.get("COA_LOAD_REFUSED", "0.005"))
"""Share of the requests that may get 429, which a client's library sends again: nothing of them was begun."""
VICTIMS = ("EngineCore", "ServeReplica:coa:afm")
AFTER_S = 60.0
"""Seconds after a kill in which latencies are counted apart."""
LOOK_S = 5.0
GROWTH = 1.05
"""Of the memory of all processes of the server, from the second quarter of what was seen to the last one."""
LONGEST_S = 120.0
NEW_VERSION = 5

Send = Callable[[aiohttp.ClientSession], Awaitable[None]]


class Refused(Exception):
    """429; the seconds that it took, and those after which to try again."""


@asynccontextmanager
async def asked(
    client: aiohttp.ClientSession, method: str, path: str, status: int = 200, **body: Any
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The answer to a request, which has this status."""
    began = time.monotonic()
    async with client.request(method, path, json=body or None) as answer:
        if answer.status == 429 != status:
            raise Refused(time.monotonic() - began, int(answer.headers["retry-after"]))
        assert answer.status == status, f"{method} {path}: {answer.status} {(await answer.text())[:300]}"
        yield answer


async def told(client: aiohttp.ClientSession, method: str, path: str, **body: Any) -> Any:
    async with asked(client, method, path, **body) as answer:
        return await answer.json()


def posted(path: str, status: int = 200, **body: Any) -> Send:
    async def send(client: aiohttp.ClientSession) -> None:
        async with asked(client, "POST", path, status, temperature=1.0, **body) as answer:
            await answer.read()

    return send


def streamed(path: str, last: str, **body: Any) -> Send:
    """Read to its end, whose last line says `last`, without an event that says that something failed."""

    async def send(client: aiohttp.ClientSession) -> None:
        async with asked(client, "POST", path, temperature=1.0, stream=True, **body) as answer:
            lines = [line for line in (await answer.text()).splitlines() if line]
        assert last in lines[-1], f"it ends with {lines[-1]}"
        assert not any('"error":{' in line for line in lines), lines[-2:]

    return send


def left(path: str, **body: Any) -> Send:
    """A client that leaves in the middle."""

    async def send(client: aiohttp.ClientSession) -> None:
        async with asked(client, "POST", path, temperature=1.0, stream=True, **body) as answer:
            await answer.content.readany()
            answer.close()

    return send


async def stored(client: aiohttp.ClientSession) -> None:
    """A response, the one that follows it, and both deleted."""
    path = "/v1/responses"
    body = {"model": "demo", "input": "How many cups remain ?", "temperature": 1.0}
    first = await told(client, "POST", path, **body)
    then = await told(client, "POST", path, previous_response_id=first["id"], **body)
    for made in (first, then):
        for method in ("GET", "DELETE"):
            await told(client, method, f"{path}/{made['id']}")


PLAIN: dict[str, Any] = {"model": "demo:plain", "max_tokens": 32}
AGENTS: dict[str, Send] = {
    "chat, agent": posted("/v1/chat/completions", model="demo", messages=ASKED),
    "chat, agent, streamed": streamed("/v1/chat/completions", "[DONE]", model="demo", messages=ASKED),
    "messages": posted("/v1/messages", model="demo", max_tokens=400, messages=ASKED),
    "responses, streamed": streamed("/v1/responses", "[DONE]", model="demo", input="How many cups remain ?"),
}
"""Each is one answer of the agent, from its beginning to its end."""
KINDS: dict[str, Send] = {
    **AGENTS,
    "chat, plain": posted("/v1/chat/completions", messages=ASKED, **PLAIN),
    "chat, plain, streamed": streamed("/v1/chat/completions", "[DONE]", messages=ASKED, **PLAIN),
    "completion": posted("/v1/completions", prompt="How many", **PLAIN),
    "responses, stored": stored,
    "left": left("/v1/chat/completions", model="demo", messages=ASKED),
    "no such model": posted("/v1/chat/completions", 404, model="nobody", messages=ASKED),
    "no messages": posted("/v1/chat/completions", 400, model="demo", messages=[]),
}


@dataclass
class Found:
    done: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    """Seconds until each 429."""
    agent: list[tuple[float, float]] = field(default_factory=list)
    """Time at which each answer of the agent began, and its seconds."""
    memory: list[tuple[float, float]] = field(default_factory=list)
    """Time and MiB every LOOK_S seconds."""
    kills: list[float] = field(default_factory=list)

    def calm_memory(self) -> list[float]:
        """MiB while no engine is being replaced."""
        return [mib for at, mib in self.memory if not any(kill <= at < kill + AFTER_S for kill in self.kills)]

    def latencies(self, apart: bool) -> list[float]:
        """Seconds of the agent's answers outside of the time after a kill, or those within it, if `apart` is set."""
        return [
            seconds
            for began, seconds in self.agent
            if apart == any(began < kill + AFTER_S and began + seconds > kill for kill in self.kills)
        ]


async def load(url: str, until: float, found: Found) -> None:
    numbers = itertools.count()
    names = list(KINDS)
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=LONGEST_S)
    async with aiohttp.ClientSession(url, connector=connector, timeout=timeout) as client:

        async def one_after_another() -> None:
            while time.monotonic() < until:
                name = random.Random(next(numbers)).choice(names)
                began = time.monotonic()
                try:
                    await KINDS[name](client)
                except Refused as refused:
                    took_s, wait_s = refused.args
                    found.refused.append(took_s)
                    await asyncio.sleep(wait_s)
                    continue
                except (aiohttp.ClientError, TimeoutError, AssertionError) as error:
                    found.faults.append(f"{name}, after {time.monotonic() - began:.1f} s: {error!r}")
                    print(found.faults[-1], flush=True)
                found.done[name] += 1
                if name in AGENTS:
                    found.agent.append((began, time.monotonic() - began))

        await asyncio.gather(*(one_after_another() for _ in range(CLIENTS)))


def memory(server: psutil.Process) -> float:
    """MiB of all processes of the server; pages that they share count once for each who has them."""
    found = 0
    for process in (server, *server.children(recursive=True)):
        with suppress(psutil.Error):
            found += process.memory_info().rss
    return found / 2**20


async def look(server: psutil.Process, found: Found) -> None:
    while True:
        found.memory.append((time.monotonic(), memory(server)))
        await asyncio.sleep(LOOK_S)


async def kill(server: psutil.Process, until: float, found: Found) -> None:
    """Kills an engine, and the next time a replica, as long as the last one can come back before the end."""
    for victim in itertools.cycle(VICTIMS):
        if time.monotonic() + KILL_S + AFTER_S > until:
            return
        await asyncio.sleep(KILL_S)
        found.kills.append(time.monotonic())
        random.Random(len(found.kills)).choice(processes(server.pid, victim)).kill()


@pytest.mark.slow
def test_under_a_mixed_load_no_request_fails_and_memory_stays_as_it_is(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    run = tmp_path / "demo"
    model = run / "checkpoints" / "sft-model"
    if MODEL:
        shutil.copytree(MODEL, model)
        # It would end out of form now and then, which is an error of its own.
        write_agent(model, replace(agent_of(model, AGENT), grammar=Grammar.enforce))
    else:
        write_agent(make_model(model), AGENT)
    found = Found()

    async def go(url: str, server: psutil.Process) -> None:
        until = time.monotonic() + LOAD_S
        beside = [asyncio.ensure_future(look(server, found)), asyncio.ensure_future(kill(server, until, found))]
        loading = asyncio.ensure_future(load(url, until, found))
        await asyncio.sleep(LOAD_S / 2)
        await asyncio.to_thread(make_checkpoint, run, NEW_VERSION, model)
        await loading
        for one in beside:
            one.cancel()
        for ended in await asyncio.gather(*beside, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    replicas = ("serving.min_replicas=2", "serving.max_replicas=2", "serving.follow_every_s=1")
    with serving(run, "load", *replicas, what="--follow") as (url, pid):
        asyncio.run(go(url, psutil.Process(pid)))
        assert httpx.get(f"{url}/v1/load").json()["episodes"] == 0
        assert httpx.get(f"{url}/readyz").json()["version"] == NEW_VERSION
    calm = found.calm_memory()
    quarter = len(calm) // 4
    before, after = median(calm[quarter : 2 * quarter]), median(calm[3 * quarter :])
    figures = {
        "requests": found.done.total(),
        "by kind": dict(found.done),
        "kills": len(found.kills),
        "faults": found.faults,
        "refused": figures_of(found.refused),
        "agent": figures_of(found.latencies(apart=False)),
        "agent after a kill": figures_of(found.latencies(apart=True)),
        "memory_mib": [round(before), round(after)],
    }
    record_property("load", figures)
    print(json.dumps(figures, indent=1))
    assert found.faults == []
    assert len(found.refused) <= REFUSED * found.done.total()
    assert set(found.done) == set(KINDS)
    assert after <= GROWTH * before


def figures_of(seconds: list[float]) -> dict[str, float]:
    if len(seconds) < 2:
        return {"count": len(seconds)}
    found = {"median": median(seconds), "p99": quantiles(seconds, n=100)[98], "max": max(seconds)}
    return {"count": len(seconds), **{name: round(value, 2) for name, value in found.items()}}
