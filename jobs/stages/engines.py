"""A pool of engines that exists as long as a job runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from actors.rollout.engine import RolloutEngine
from actors.tools.remote import ToolClient
from cluster.engine_actor import launcher
from cluster.notices import heed
from cluster.pool import EnginePool
from coa.agent.episode import AgentConfig
from jobs.recipe.schema import Recipe
from jobs.run.run_dir import RunDir
from jobs.stages.programs import program_player

PLACES = 2
"""Maximum number of episodes on an engine per request in its batch: some wait for tools while others sample."""


def places_of(config: Recipe) -> int:
    """Maximum number of episodes on an engine at a time."""
    return PLACES * config.engine.max_concurrent


@asynccontextmanager
async def engine_pool(
    run: RunDir, model: Path, tools: ToolClient, agent: AgentConfig | None = None
) -> AsyncIterator[EnginePool]:
    """agent: in place of the recipe's."""
    config = run.config if agent is None else replace(run.config, agent=agent)
    launch = launcher(
        RolloutEngine,
        config.placement,
        tools,
        str(model),
        config=config.engine,
        agent=config.agent,
        reward=config.rl.reward,
        seed=config.seed,
        retry=config.executor.retry,
        gpus=config.placement.engine_gpus,
    )
    pool = EnginePool(
        launch,
        config.pool,
        config.agent,
        places=places_of(config),
        patience_s=config.evaluation.patience_s,
        say=run.console.say,
    )
    for _ in range(config.placement.engines):
        pool.add()
    notices = asyncio.ensure_future(heed(pool, config.pool.scaling.handover_s, run.console.say))
    try:
        with run.console.waiting("engines", f"starting {config.placement.engines} with {model.name}"):
            await pool.ready()
        async with AsyncExitStack() as stack:
            if config.agent.program.is_set:
                programs = program_player(config, model, tools, lambda order, _: pool.take_turn(order), run.console.say)
                pool.programs = await stack.enter_async_context(programs)
            yield pool
    finally:
        notices.cancel()
        await pool.stop()
