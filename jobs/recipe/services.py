"""The services that a recipe's teachers, tools and graders send requests to: one table for the plan, for the request
that each of them gets before a stage that pays for it, and for `--check`."""

import asyncio
import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from cluster.session import address_of
from coa.errors import EndpointDown, InfrastructureError, UserError
from coa.grading.chooser import CHOOSER
from coa.grading.judge import JUDGE
from coa.grading.toolset import ToolsConfig
from coa.http.addresses import is_loopback, redact
from coa.http.client import Http, HttpConfig, NoReply
from coa.http.keys import bearer
from coa.llm.client import Endpoint, EndpointConfig
from coa.tools.base import ToolCall
from coa.tools.chat import ChatConfig
from coa.tools.mcp.tool import mcp_tools
from coa.tools.search.wiki import Retriever
from coa.tools.web.crawl import CrawlPage
from coa.tools.web.search import WebSearch
from coa.tools.web.summary import SummaryConfig
from jobs.recipe.findings import Finding, Service
from jobs.recipe.schema import Recipe
from jobs.run.console import Console

ONCE = HttpConfig(timeout_s=60.0, attempts=1, timeouts=1)
"""One request, without retries."""
QUESTION = [{"role": "user", "content": "Reply with the word yes."}]
STATUS = "status "
"""Beginning of the reason of a failure by which a service says that it is overloaded or defect (429, 5xx)."""
LISTED = 8
"""Maximum number of models that an error lists."""
READ = "https://example.com/"
"""The page that the reader is asked for."""


def services_of(config: Recipe, models: Collection[str], tools: Collection[str]) -> Iterator[Service]:
    """The services that these of the recipe's `models` and these tools use, by name; graders' tools count as tools."""
    for name in sorted(set(models) & config.models.keys()):
        endpoint = config.models[name].endpoint
        if not config.models[name].serve.model and endpoint.url:
            where = f"{endpoint.name} at {redact(endpoint.url)}"
            yield Service(
                f"models.{name}", where, endpoint.key_env, partial(ask_model, endpoint, f"models.{name}.endpoint")
            )
    yield from _of_tools(config.tools, set(tools))


def unasked(config: Recipe, services: Iterable[Service]) -> Iterator[Finding]:
    """Findings about services before they are asked: tool executors run on all nodes of a cluster, and each would
    look for one at a loopback address on its own node."""
    for service in services:
        found = Finding.unasked(service)
        if is_loopback(service.where.rpartition(" ")[2]) and address_of(config.session) is not None:
            found = replace(
                found,
                caution=f"caution: {found.what} is at a loopback address: where a part runs on another node of the "
                "cluster than the service, it is not found; give the address of the service's node",
            )
        yield found


def _of_tools(config: ToolsConfig, tools: set[str]) -> Iterator[Service]:
    search, crawl, judge = config.search, config.crawl, config.judge
    if "web_search" in tools - config.mapped and search.url is not None:
        yield Service("web_search", redact(search.url), search.key_env, partial(_ask_search, config))
    if "crawl_page" in tools - config.mapped:
        if crawl.reader is not None:
            yield Service("crawl_page", redact(crawl.reader), crawl.reader_key_env, partial(_ask_reader, config))
        if crawl.summary.url is not None:
            yield _chat(
                "summaries of pages",
                "tools.crawl.summary",
                crawl.summary,
                temperature=0,
                max_tokens=crawl.summary.max_tokens,
            )
    if "wiki_search" in tools - config.mapped and config.wiki.retriever:
        yield Service("wiki_search", redact(config.wiki.retriever), None, partial(_ask_retriever, config))
    if {JUDGE, CHOOSER} & tools and judge.url is not None:
        yield _chat("judge", "tools.judge", judge, temperature=judge.temperature, max_tokens=judge.max_tokens)
    for name, server in config.mcp.items():
        if tools & set(server.tags):
            where = redact(server.where)
            yield Service(f"tools.mcp.{name}", where, server.key_env, partial(_ask_mcp, config, name))


def _chat(what: str, where: str, config: ChatConfig, **options: Any) -> Service:
    """The service of a language model that a tool asks. where: its key in the recipe; options: fields of requests."""
    endpoint = EndpointConfig(
        url=config.url,
        name=config.model,
        key_env=config.key_env,
        timeout_s=config.timeout_s,
        max_tokens=None,
        extra=config.extra,
    )
    return Service(
        what,
        f"{config.model} at {redact(config.url or '')}",
        config.key_env,
        partial(ask_model, endpoint, where, **options),
    )


def ask_all(services: Sequence[Service], console: Console) -> None:
    """Sends each service one request, at the same time; raises UserError, in one line, for those that can't be used. A
    service that has an error of its own is only told: it is there, and a run asks it again."""
    names = ", ".join(service.what for service in services)
    with console.waiting("services", f"asking {names}, one request each"):
        found = asyncio.run(answers_of(services))
    if failures := [answer.failure for answer in found if answer.failure]:
        raise UserError("; ".join(failures))
    for answer in found:
        if answer.caution:
            console.say(answer.caution)


class Answer(NamedTuple):
    """How a service answered its one request."""

    failure: str = ""
    """Why it can't be used; empty if it can."""
    caution: str = ""
    """A possible fault of it; empty for none."""


async def answers_of(services: Sequence[Service]) -> list[Answer]:
    """Sends each service one request, at the same time."""
    return await asyncio.gather(*map(_answer_of, services))


async def _answer_of(service: Service) -> Answer:
    try:
        await service.ask()
    except (UserError, InfrastructureError) as error:
        why = str(error).removeprefix(f"{service.what}: ")
        if isinstance(error, EndpointDown) and error.reason.startswith(STATUS):
            return Answer(caution=f"caution: {service.what} is there, but has an error of its own now: {why}")
        return Answer(failure=f"{service.what} can't be used: {why}")
    return Answer()


async def ask_model(config: EndpointConfig, where: str, **options: Any) -> None:
    """Asks a language model a question that it answers in a word, with the fields that all requests have. If it fails,
    the error has the names of the models that are there, should they not include the recipe's. where: its key in the
    recipe."""
    endpoint = Endpoint(replace(config, attempts=1, timeouts=1), where, insists=False)
    try:
        await endpoint.complete(QUESTION, seed=None, **options)
    except (UserError, InfrastructureError) as error:
        if (names := await _listed(config)) and config.name not in names:
            more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
            there = f"; it has no model {config.name!r}, but {', '.join(names[:LISTED])}{more}"
            raise UserError(f"{error}{there}") from error
        raise
    finally:
        await endpoint.close()


async def _listed(config: EndpointConfig) -> list[str]:
    """The names of the models that an endpoint lists; empty if it lists none."""
    http = Http(ONCE)
    try:
        reply = await http.send("GET", f"{(config.url or '').rstrip('/')}/models", None, bearer(config.key_env))
        with suppress(ValueError, TypeError, LookupError, RecursionError):
            return [str(model["id"]) for model in json.loads(reply.text)["data"]]
    except NoReply:
        pass
    finally:
        await http.close()
    return []


async def _ask_search(config: ToolsConfig) -> None:
    tool = WebSearch(config.search, ONCE, config.search.url or "")
    try:
        await tool(ToolCall("web_search", "test"))
    finally:
        await tool.close()


async def _ask_reader(config: ToolsConfig) -> None:
    tool = CrawlPage(replace(config.crawl, summary=SummaryConfig()), ONCE, None)
    try:
        await tool(ToolCall("crawl_page", READ))
    finally:
        await tool.close()


async def _ask_retriever(config: ToolsConfig) -> None:
    http = Http(ONCE)
    try:
        await Retriever(http, config.wiki.retriever, config.wiki.topk)("test")
    finally:
        await http.close()


async def _ask_mcp(config: ToolsConfig, name: str) -> None:
    tools = mcp_tools({name: config.mcp[name]})
    try:
        for tool in tools.values():
            await tool.check()
    finally:
        for tool in tools.values():
            await tool.close()
