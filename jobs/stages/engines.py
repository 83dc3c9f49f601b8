"""A pool of engines that exists as long as a job runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from actors.gateway.player import ProgramPlayer
from actors.rollout.engine import RolloutEngine
from actors.tools.remote import ToolClient
from cluster.engine_actor import launcher
from cluster.notices import heed
from cluster.pool import EnginePool
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.tools.client import ToolCaller
from jobs.recipe.schema import Recipe
from jobs.run.run_dir import RunDir

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
                pool.programs = await stack.enter_async_context(program_player(config, model, pool, tools))
            yield pool
    finally:
        notices.cancel()
        await pool.stop()


@asynccontextmanager
async def program_player(
    config: Recipe, model: Path, pool: EnginePool, tools: ToolClient
) -> AsyncIterator[ProgramPlayer]:
    """Serves the pool's policy to the recipe's program, and plays its episodes."""
    from actors.gateway.model import recorded_model
    from actors.gateway.server import NAME, Gateway

    codec, program, limits = Codec.load(model), config.agent.program, config.agent.limits
    served = await recorded_model(
        model, config.engine, codec, name=NAME, tool_parser=program.tool_parser, max_tokens=limits.max_tokens
    )
    gateway = Gateway(served)
    async with gateway.serving() as address:
        yield ProgramPlayer(
            gateway,
            address,
            pool.take_turn,
            ToolCaller(tools, f"programs-{uuid4().hex}"),
            codec,
            reward=config.rl.reward,
            retry=config.executor.retry,
            at_once=program.at_once,
        )
