"""Pools on fake engines, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from actors.messages import EpisodeOrder
from cluster.health import PoolConfig
from cluster.pool import EnginePool
from coa.types import Scored
from tests.support.engines import AGENT, FakeWorld

NOW: Callable[[], float] = lambda: asyncio.get_running_loop().time()  # noqa: E731


@asynccontextmanager
async def pool_of(
    world: FakeWorld,
    engines: int = 2,
    *,
    places: int = 256,
    patience_s: float = 60.0,
    config: PoolConfig | None = None,
) -> AsyncIterator[EnginePool]:
    pool = EnginePool(
        world.launch, config or PoolConfig(), AGENT, places=places, patience_s=patience_s, say=SAID.append
    )
    SAID.clear()
    for _ in range(engines):
        pool.add()
    try:
        await pool.ready()
        await asyncio.sleep(1)
        yield pool
    finally:
        await pool.stop()
        assert all(engine.released for engine in world.engines), "a pool leaves no engine behind"


SAID: list[str] = []
"""What the pool last told of its engines."""


def tokens_of(results: Sequence[Scored]) -> list[list[int]]:
    return [one.trajectory.token_ids.tolist() for one in results]


async def undisturbed(orders: Sequence[EpisodeOrder]) -> list[list[int]]:
    async with pool_of(FakeWorld(), 1) as pool:
        return tokens_of(await asyncio.gather(*map(pool.play, orders)))
