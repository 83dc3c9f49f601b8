"""A pool of engines for the length of a job."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.rollout.engine import RolloutEngine
from cluster.engine_actor import launcher
from cluster.pool import EnginePool
from jobs.run.run_dir import RunDir

PLACES = 2
"""Episodes on an engine at a time, for each request in its batch: while some wait for a tool, others sample."""


@asynccontextmanager
async def engine_pool(run: RunDir, model: Path, executors: Sequence[Any]) -> AsyncIterator[EnginePool]:
    config = run.config
    launch = launcher(
        RolloutEngine,
        config.placement,
        executors,
        str(model),
        config=config.engine,
        agent=config.agent,
        reward=config.rl.reward,
        seed=config.seed,
        retry=config.executor.retry,
    )
    pool = EnginePool(
        launch,
        config.pool,
        config.agent,
        places=PLACES * config.engine.max_concurrent,
        patience_s=config.evaluation.patience_s,
        say=run.console.say,
    )
    for _ in range(config.placement.engines):
        pool.add()
    try:
        with run.console.waiting("engines", f"starting {config.placement.engines} with {model.name}"):
            await pool.ready()
        yield pool
    finally:
        await pool.stop()
