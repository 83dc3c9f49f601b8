"""Tool executors as processes: stopped, blocked by a tool, and killed."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.tools.executor import ExecutorConfig
from actors.tools.workers import LOOK_EVERY_S, SILENT_S
from coa.errors import CallLost
from coa.tools.base import Tool, ToolCall
from coa.tools.client import ToolCaller

RAY_S = 20.0
"""Seconds that Ray may take to end a process and to start another one, on two slow cores."""


class Harmful:
    """Notes each execution in a file. "block once" blocks its process for ever the first time; "kill" ends it."""

    def __init__(self, notes: Path) -> None:
        self._notes = notes

    def key(self, call: ToolCall) -> str | None:
        return None

    async def __call__(self, call: ToolCall) -> str:
        first = call.argument not in self._notes.read_text().splitlines()
        with self._notes.open("a") as notes:
            notes.write(f"{call.argument}\n")
        if call.argument == "block once" and first:
            time.sleep(1e6)  # noqa: ASYNC251 - the harm itself
        if call.argument == "kill":
            os._exit(1)
        if call.argument == "slow":
            await asyncio.sleep(10)
        return str(os.getpid())


def tools_of(notes: Path) -> Mapping[str, Tool]:
    return {"t": Harmful(notes)}


@pytest.mark.slow
def test_an_executor_that_is_stopped_or_blocked_or_killed_is_replaced_and_its_calls_run_twice_at_most(
    ray_session: None, tmp_path: Path
) -> None:
    import ray

    from actors.tools.dispatcher import ToolDispatcher
    from actors.tools.remote import ExecutorActor, ToolClient

    notes = tmp_path / "notes"
    notes.touch()
    config = ExecutorConfig(concurrency=2, call_s=300.0)
    launch = partial(ExecutorActor, partial(tools_of, notes), config, {"num_cpus": 0})
    make: Any = ray.remote(ToolDispatcher)
    dispatcher = make.options(num_cpus=0, max_concurrency=100).remote(launch, config, 2, (2, 2))

    async def go() -> None:
        assert not await dispatcher.mistake.remote()
        caller = ToolCaller(ToolClient(dispatcher), "engine", None)

        def call(id: str, argument: str) -> asyncio.Task[str]:
            return asyncio.ensure_future(caller.call(id, ToolCall("t", argument)))

        first = [call(f"pid {n}", "slow") for n in range(4)]
        pids = {int(pid) for pid in await asyncio.gather(*first)}
        assert len(pids) == 2
        async with asyncio.timeout(LOOK_EVERY_S + SILENT_S + RAY_S):
            assert int(await call("block", "block once"))
        # Only now: a call whose second executor is stopped would be lost.
        stopped = int(await call("after", "well"))
        os.kill(stopped, signal.SIGSTOP)
        async with asyncio.timeout(2 * (LOOK_EVERY_S + SILENT_S + RAY_S)):
            while psutil.pid_exists(stopped):  # noqa: ASYNC110 - other processes end
                await asyncio.sleep(0.1)
        with pytest.raises(CallLost):
            await call("kill", "kill")
        with pytest.raises(CallLost):
            await call("kill", "kill")
        assert await call("last", "well")
        made = Counter(notes.read_text().splitlines())
        assert made == {"slow": 4, "block once": 2, "well": 2, "kill": 2}
        stats = (await dispatcher.stats.remote())["t"]
        assert (stats.repeated, stats.lost) == (2, 1)

    asyncio.run(go())
    ray.kill(dispatcher)
