"""What teachers, students and evaluations call: tool executors, and the site that the tiny world's web lives on."""

import functools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import ray

from actors.site import Site
from actors.tools import ToolExecutor
from coa.tools.base import Tool
from coa.tools.standard import ToolsConfig, standard_tools
from coa.world import World, WorldConfig
from jobs.run import Run


def make_tools(config: ToolsConfig, world: WorldConfig, site: str) -> Mapping[str, Tool]:
    return standard_tools(config, articles=World(world).wiki_pages, site=site)


@asynccontextmanager
async def tool_executors(run: Run) -> AsyncIterator[list[Any]]:
    """Handles of the executors; the site serves within."""
    config = run.config
    site: Any = ray.remote(Site).options(num_cpus=0).remote(run.world.site_pages, run.world.site_hits)
    address = await site.start.remote()
    executor: Any = ray.remote(ToolExecutor).options(
        num_cpus=config.placement.tool_cpus, max_concurrency=10_000, max_restarts=-1, max_task_retries=3
    )
    executors = [
        executor.remote(functools.partial(make_tools, config.tools, config.world, address), config.executor)
        for _ in range(config.placement.tool_executors)
    ]
    try:
        yield executors
    finally:
        for handle in (*executors, site):
            ray.kill(handle)
