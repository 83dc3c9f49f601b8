"""The store of published weights as Ray actors: one directory for the run, and a holder on each node that needs one."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.handles import Handle, kill, start_actor, start_restartable
from actors.weights.holder import Ranges, WeightHolder
from actors.weights.store import Address, Kept, WeightDirectory
from cluster.resources import on_driver_node
from coa.errors import SyncError

RPC_S = 300.0
"""Maximum seconds for the directory's answer, in addition to those for bytes that have to be copied."""
SLOWEST = 100e6
"""Minimum bytes per second from other nodes: a merge or a copy that takes longer than size / SLOWEST + RPC_S has
failed."""
CLOSE_S = 10.0


class RayWeightStore:
    """`actors.weights.store.WeightStore` around the directory's handle."""

    def __init__(self, directory: Handle) -> None:
        self._directory = directory

    def folder(self, node: str) -> str:
        return self._ask("folder", node)

    def check(self, node: str, folder: str) -> None:
        self._ask("check", node, folder)

    def merge(self, name: str, first: str, size: int, parts: Sequence[tuple[str, Ranges]]) -> None:
        self._ask("merge", name, first, size, parts, limit_s=RPC_S + size / SLOWEST)

    def keep(self, kept: Kept) -> None:
        self._ask("keep", kept)

    def members(self) -> dict[str, int]:
        return self._ask("members")

    def absent(self, engines: Sequence[str]) -> None:
        self._ask("absent", list(engines))

    async def path(self, name: str, address: Address, size: int = 0) -> str:
        return await self._await("path", name, address, limit_s=RPC_S + size / SLOWEST)

    async def join(self, address: Address) -> None:
        await self._await("join", address)

    async def acknowledge(self, name: str, address: Address) -> None:
        await self._await("acknowledge", name, address)

    def _ask(self, method: str, *args: object, limit_s: float = RPC_S) -> Any:
        try:
            return ray.get(getattr(self._directory, method).remote(*args), timeout=limit_s)
        except (RayActorError, GetTimeoutError) as error:
            raise SyncError(f"the directory of weights does not answer: {type(error).__name__}") from error

    async def _await(self, method: str, *args: object, limit_s: float = RPC_S) -> Any:
        try:
            return await asyncio.wait_for(getattr(self._directory, method).remote(*args), limit_s)
        except (RayActorError, TimeoutError) as error:
            raise SyncError(f"the directory of weights does not answer: {type(error).__name__}") from error


def start_directory() -> Handle:
    """Starts the directory and returns its handle. The caller owns the directory, which owns the holders. If it dies,
    the holders end too, and a new directory without weights takes its place; calls under way are repeated."""
    options = {"max_concurrency": 1000, "max_task_retries": -1, **on_driver_node()}
    return start_restartable(WeightDirectory, options, start_holder, (RayError,))


def start_holder(node: str) -> Handle:
    here = NodeAffinitySchedulingStrategy(node, soft=False)
    return start_actor(WeightHolder, {"num_cpus": 0, "max_concurrency": 100, "scheduling_strategy": here})


async def close_directory(directory: Handle) -> None:
    """Removes all weight files and ends the actors. Files that an engine has mapped stay readable for it."""
    with contextlib.suppress(RayError, TimeoutError):  # files of a dead holder are removed by the next one
        await asyncio.wait_for(directory.close.remote(), CLOSE_S)
    kill(directory)
