"""What teachers, students and evaluations call: tool executors, and the site that the tiny world's web lives on."""

import asyncio
import functools
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any

import ray

from actors.site import Site
from actors.tools import ToolExecutor
from coa.errors import UserError
from coa.profiles import profile as find_profile
from coa.tools.base import Tool
from coa.tools.standard import ToolsConfig, check_tools, needs_site, standard_tools, tiny_world_tools
from coa.world import World, WorldConfig
from jobs.recipe import Recipe
from jobs.run import Run, profiles_of

COUNTED = ("calls", "hits", "disk_hits", "joined", "failures", "timeouts", "retries", "seconds")


def make_tools(config: ToolsConfig, world: WorldConfig, site: str | None) -> Mapping[str, Tool]:
    """The tools that the configuration names, and the tiny world's for the rest; `site`: where its web is served."""
    return standard_tools(config, articles=World(world).wiki_pages, site=site)


async def tool_counts(executors: Sequence[Any]) -> dict[str, dict[str, float]]:
    """What was called, by tool, over all executors since they started; tools that nobody called are left out."""
    found: dict[str, Counter[str]] = {}
    for stats in await asyncio.gather(*(executor.stats.remote() for executor in executors)):
        for name, told in stats.items():
            plain = {key: value for key, value in asdict(told).items() if key in COUNTED}
            found.setdefault(name, Counter()).update(plain)
    return {name: {key: round(counts[key], 3) for key in COUNTED} for name, counts in found.items() if counts["calls"]}


def caution_about(config: Recipe) -> str:
    """What a person should know whose own tasks are looked up in the tiny world; "" where that is not so."""
    if config.tasks.path is None:
        return ""
    called = {tag.name for name in profiles_of(config) for tag in find_profile(name).tools}
    fictitious = ", ".join(sorted(called & set(tiny_world_tools(config.tools))))
    return f"caution: {fictitious} will find the tiny world's made-up pages; see `tools`" if fictitious else ""


@asynccontextmanager
async def tool_executors(run: Run) -> AsyncIterator[list[Any]]:
    """Handles of the executors; the site, where a tool leads there, serves within.

    Raises UserError for tools that cannot be made as configured, such as a corpus that is not there.
    """
    config = run.config
    check_tools(config.tools, crawl_s=config.executor.limit_s("crawl_page"), named=config.executor.named)
    if caution := caution_about(config):
        run.console.say(caution)
    started: list[Any] = []
    try:
        address = None
        if needs_site(config.tools):
            site: Any = ray.remote(Site).options(num_cpus=0).remote(run.world.site_pages, run.world.site_hits)
            started.append(site)
            address = await site.start.remote()
        make: Any = ray.remote(ToolExecutor).options(
            num_cpus=config.placement.tool_cpus, max_concurrency=10_000, max_restarts=-1, max_task_retries=3
        )
        executors = [
            make.remote(functools.partial(make_tools, config.tools, config.world, address), config.executor)
            for _ in range(config.placement.tool_executors)
        ]
        started += executors
        for executor in executors:
            if mistake := await executor.mistake.remote():
                raise UserError(mistake)
        yield executors
    finally:
        for handle in started:
            ray.kill(handle)
