"""Starts the tool executors that teams, policy and evaluations call, and the server of a world's own web site."""

import functools
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import ray

from actors.addresses import node_address
from actors.handles import Handle, kill, start_restartable
from actors.tools.dispatcher import ToolDispatcher
from actors.tools.remote import ExecutorActor, ToolClient
from actors.tools.site import Site
from cluster.resources import Role, on_driver_node
from cluster.watch import Ask, watch_in_thread, watched_services
from coa.errors import UserError
from coa.grading.toolset import ToolsConfig, check_tools, needs_site, searches_left_open, standard_tools
from coa.json_object import Json, JsonView
from coa.tasks.worlds import WebSite, World, caution_of_foreign_tasks
from coa.tools.base import Tool
from jobs.recipe.needs import tools_of
from jobs.recipe.schema import Recipe
from jobs.run.run_dir import RunDir

_log = logging.getLogger(__name__)
DISPATCHER = "the dispatcher of tool calls"
COUNTED = (
    *("calls", "hits", "disk_hits", "joined", "failures", "timeouts", "defects", "retries", "repeated", "lost"),
    "seconds",
)


def make_tools(config: ToolsConfig, world: World, site: str | None) -> Mapping[str, Tool]:
    """The tools that are configured, and the world's for the rest. site: the base URL of the world's web site."""
    return standard_tools(config, articles=world.articles, site=site)


async def tool_counts(tools: ToolClient) -> dict[str, Json]:
    """Counts of calls by tool, and `histogram`, since the executors started; tools without calls are left out."""
    return {
        name: {
            **{key: round(getattr(counted, key), 3) for key in COUNTED},
            "histogram": dict(sorted(counted.histogram.items(), key=lambda bucket: float(bucket[0]))),
        }
        for name, counted in (await tools.stats()).items()
        if counted.calls or counted.repeated
    }


def counts_since(before: JsonView, now: JsonView) -> dict[str, Json]:
    """The difference of two `tool_counts`. Calls of a dispatcher that died in between, whose counts began anew, are
    missing."""
    found: dict[str, Json] = {}
    for tool, counts in now.items():
        old = before.get(tool, {})
        found[tool] = {key: round(max(0, counts[key] - old.get(key, 0)), 3) for key in COUNTED}
        found[tool]["histogram"] = dict(Counter(counts["histogram"]) - Counter(old.get("histogram", {})))
    return {tool: counts for tool, counts in found.items() if counts["calls"]}


def caution_about(config: ToolsConfig, world: World, profiles: Iterable[str] | None = None) -> str:
    """Warning that a user's own tasks are looked up in a world's made-up pages; empty if they are not.

    profiles: of tasks that are given separately from the recipe; None for the recipe's own.
    """
    of_recipe = profiles is None
    searches = sorted(tools_of(world.profiles() if of_recipe else profiles) & made_up(config, world))
    return world.caution(searches) if of_recipe else caution_of_foreign_tasks(world, searches)


def made_up(config: ToolsConfig, world: World) -> set[str]:
    """The search tools that search the world's own pages."""
    there = {"wiki_search": world.articles is not None, "web_search": world.site is not None}
    return {name for name in searches_left_open(config) if there[name]}


def start_tools(config: Recipe, world: World) -> ToolClient:
    """The tools, which end with the process that calls this, and the world's web site with them. It waits for them;
    raises UserError for tools that cannot be made as configured. The log of this process names those of them that stay
    away."""
    check_tools(config.tools, crawl_s=config.executor.limit_s("crawl_page"), named=config.executor.limited)
    address: str | None = None
    services: dict[str, Ask] = {}
    if needs_site(config.tools) and (web := world.site) is not None:
        site = make_site(web)
        _SITES.append(site)
        address = ray.get(site.start.remote())
        site.hold.remote(address)
        services[_site_of(world)] = site.check.remote
    dispatcher = _dispatcher(config, world, address)
    if mistake := ray.get(dispatcher.mistake.remote()):
        raise UserError(mistake)
    tools = ToolClient(dispatcher)
    watch_in_thread({**services, DISPATCHER: tools.check}, _log.warning)
    return tools


_SITES: list[Handle] = []
"""Handles of this process's sites: an actor ends when its last handle is gone."""


def _site_of(world: World) -> str:
    return f"the web site of the world {world.name}"


def make_site(web: WebSite) -> Handle:
    """The handle of a world's web site, to be started; Ray starts it again if its process dies."""
    return start_restartable(Site, {"max_task_retries": -1, **on_driver_node()}, web.pages, web.hits, node_address)


def _dispatcher(config: Recipe, world: World, address: str | None) -> Handle:
    placement = config.placement
    launch = functools.partial(
        ExecutorActor,
        functools.partial(make_tools, config.tools, world, address),
        config.executor,
        {"num_cpus": placement.tool_cpus, **placement.on(Role.tool)},
    )
    options = {"max_concurrency": 10_000, "max_task_retries": -1, **on_driver_node()}
    return start_restartable(
        ToolDispatcher, options, launch, config.executor, placement.tool_executors, placement.tool_range
    )


@asynccontextmanager
async def tool_client(run: RunDir, profiles: Iterable[str] | None = None) -> AsyncIterator[ToolClient]:
    """Opens the client through which tools are called; its dispatcher keeps the executors. The world's web site is
    served meanwhile, if a tool uses it.

    profiles: of tasks that are given separately from the recipe; None for the recipe's own.

    Raises UserError for tools that cannot be made as configured, such as a corpus that is not there.
    """
    config = run.config
    check_tools(config.tools, crawl_s=config.executor.limit_s("crawl_page"), named=config.executor.limited)
    if caution := caution_about(config.tools, run.world, profiles):
        run.console.say(caution)
    started: list[Handle] = []
    services: dict[str, Ask] = {}
    try:
        address = None
        if needs_site(config.tools) and (web := run.world.site) is not None:
            site = make_site(web)
            started.append(site)
            address = await site.start.remote()
            site.hold.remote(address)
            services[_site_of(run.world)] = site.check.remote
        dispatcher = _dispatcher(config, run.world, address)
        started.append(dispatcher)
        tools = ToolClient(dispatcher)
        services[DISPATCHER] = tools.check
        with run.console.waiting("tools", "starting them"):
            mistake = await dispatcher.mistake.remote()
        if mistake:
            raise UserError(mistake)
        async with watched_services(services, run.console.say):
            yield tools
    finally:
        for handle in started:
            kill(handle)  # executors end with their dispatcher
