"""Tool executors that are actors: answered one by one, and restarted under the calls of an episode."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import pytest
import ray
from ray.exceptions import TaskCancelledError

from actors.messages import CallId, EpisodeId
from actors.tools.executor import ToolExecutor
from actors.tools.remote import ToolClient
from coa.errors import ToolDown
from coa.tools.base import Tool, ToolCall
from coa.tools.client import ToolCaller


class Sleeper:
    """Answers with its process's id; "for ever" sleeps so long, and "until woken" until another call wakes it."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()

    def key(self, call: ToolCall) -> str | None:
        return None

    async def __call__(self, call: ToolCall) -> str:
        if call.argument == "for ever":
            await asyncio.sleep(3600)
        if call.argument == "until woken":
            await self._woken.wait()
        if call.argument == "wake":
            self._woken.set()
        return f"{call.argument} {os.getpid()}"


def make_tools() -> Mapping[str, Tool]:
    return {"t": Sleeper()}


def id_of(number: int) -> CallId:
    return CallId(EpisodeId("task", 0, number), 1)


def test_an_executor_that_is_restarted_has_lost_its_calls_and_takes_new_ones(ray_session: None) -> None:
    async def go() -> None:
        actor: Any = ray.remote(ToolExecutor).options(
            num_cpus=0, max_concurrency=100, max_restarts=-1, max_task_retries=3
        )
        handle = actor.remote(make_tools)
        caller = ToolCaller(ToolClient(handle), "engine")
        slow = asyncio.ensure_future(caller.call(id_of(0), ToolCall("t", "for ever")))
        first = await caller.call(id_of(1), ToolCall("t", "x"))
        assert not slow.done()
        ray.kill(handle, no_restart=False)
        with pytest.raises(ToolDown, match=r"gone|started again"):
            await asyncio.wait_for(slow, 60)
        while True:
            try:
                second = await asyncio.wait_for(caller.call(id_of(2), ToolCall("t", "x")), 60)
                break
            except ToolDown:
                await asyncio.sleep(0.2)
        assert second != first
        cancelled = asyncio.ensure_future(caller.call(id_of(3), ToolCall("t", "for ever")))
        await caller.call(id_of(4), ToolCall("t", "x"))
        assert (await handle.stats.remote())["t"].running == 1
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert (await handle.stats.remote())["t"].running == 0
        ray.kill(handle)

    asyncio.run(go())


class Asker:
    """A process that calls a tool for each of its clients, as a server does."""

    def __init__(self, tools: ToolClient) -> None:
        self._caller = ToolCaller(tools, "server")

    async def ask(self, number: int, argument: str) -> str:
        return await self._caller.call(id_of(number), ToolCall("t", argument))


def test_a_client_that_leaves_takes_only_its_own_call_with_it(ray_session: None) -> None:
    """Ray cancels what a cancelled call has begun, and a server's first client has begun the poll for all results."""

    async def go() -> None:
        executor: Any = ray.remote(ToolExecutor).options(num_cpus=0, max_concurrency=100)
        tools = ToolClient(executor.remote(make_tools))
        asker: Any = ray.remote(Asker).options(num_cpus=0, max_concurrency=100)
        handle = asker.remote(tools)

        async def asked(number: int, argument: str) -> Any:
            """The answer to come of a call that runs."""
            answer = handle.ask.remote(number, argument)
            while True:
                if (await tools.stats())["t"].running == number:
                    return answer
                await asyncio.sleep(0.05)

        leaves, stays = await asked(1, "for ever"), await asked(2, "until woken")
        ray.cancel(leaves)
        with pytest.raises(TaskCancelledError):
            await leaves
        woke = await handle.ask.remote(3, "wake")
        assert (await stays).split()[-1] == woke.split()[-1]
        ray.kill(handle)

    asyncio.run(go())
