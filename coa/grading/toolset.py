"""The tools of the standard profiles, by the name of their tag."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from coa.agent.grammar import TAGS, Kind
from coa.errors import UserError
from coa.grading.chooser import CHOOSER, Chooser
from coa.grading.judge import JUDGE, Judge, JudgeConfig
from coa.grading.programs import RUN_TEST, ProgramsConfig, RunTest
from coa.http.addresses import is_web_address, redact
from coa.http.client import HttpConfig
from coa.http.keys import read_key
from coa.registry import Registry
from coa.tools.base import Tool
from coa.tools.code import CodeTool
from coa.tools.mcp.config import McpConfig, check_mcp
from coa.tools.mcp.tool import mcp_tools
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig
from coa.tools.search.wiki import TitleLookup, WikiConfig, wiki_search
from coa.tools.web.crawl import CrawlConfig, CrawlPage
from coa.tools.web.search import SearchConfig, WebSearch

TOOLS = ("code", "wiki_search", "web_search", "crawl_page", RUN_TEST, JUDGE, CHOOSER)
"""The names of all tools, including those that no policy calls."""
REGISTERED: Registry[Callable[[], Tool]] = Registry("tool")
"""Tools of extensions (`coa.extensions`), created in the executor's process."""


def register(name: str, make: Callable[[], Tool]) -> None:
    """Registers the tool of the tag with that name; raises ValueError if there is one already."""
    if name in TOOLS:
        raise ValueError(f"there is a tool {name!r} already")
    REGISTERED.register(name, make)


@dataclass(frozen=True)
class ToolsConfig:
    """The tools of agents and graders."""

    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    crawl: CrawlConfig = field(default_factory=CrawlConfig)
    wiki: WikiConfig = field(default_factory=WikiConfig)
    programs: ProgramsConfig = field(default_factory=ProgramsConfig)
    judge: JudgeConfig = field(default_factory=JudgeConfig)
    mcp: dict[str, McpConfig] = field(default_factory=dict)
    """MCP servers, under names of your own, whose tools handle tags in place of the tools above."""

    @property
    def mapped(self) -> set[str]:
        """The tags that tools of MCP servers handle."""
        return {tag for server in self.mcp.values() for tag in server.tags}


def standard_tools(
    config: ToolsConfig, *, articles: Mapping[str, str] | None = None, site: str | None = None
) -> dict[str, Tool]:
    """The tools that the configuration names. For unset ones: `articles` (title to text) for wiki_search, `site` (a
    base URL with a search service at /search) for web_search and crawl_page."""
    sandbox = Sandbox(config.sandbox)
    tools: dict[str, Tool] = {"code": CodeTool(sandbox), RUN_TEST: RunTest(sandbox, config.programs)}
    if config.judge.url is not None:
        tools[JUDGE] = Judge(config.judge, config.http)
        tools[CHOOSER] = Chooser(config.judge, config.http)
    if config.wiki.configured:
        tools["wiki_search"] = wiki_search(config.wiki, config.http)
    elif articles is not None:
        tools["wiki_search"] = TitleLookup(articles)
    if search_url := config.search.url or (site and f"{site.rstrip('/')}/search"):
        tools["web_search"] = WebSearch(config.search, config.http, search_url)
    if site is not None or config.crawl.leads_somewhere:
        tools["crawl_page"] = CrawlPage(config.crawl, config.http, site)
    tools |= {name: make() for name, make in REGISTERED.items() if name not in config.mapped}
    return tools | mcp_tools(config.mcp)


def _tool_names(config: ToolsConfig) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*TOOLS, *REGISTERED, *sorted(config.mapped))))


def needs_site(config: ToolsConfig) -> bool:
    """Whether web_search or crawl_page are to use the world's site."""
    return config.search.url is None


def searches_left_open(config: ToolsConfig) -> tuple[str, ...]:
    """Names of the search tools that the configuration leaves unset; they fall back to the pages of the world."""
    open_ = {"wiki_search": not config.wiki.configured, "web_search": config.search.url is None}
    return tuple(name for name, is_so in open_.items() if is_so and name not in config.mapped)


def check_tools(config: ToolsConfig, *, crawl_s: float, named: Collection[str] = ()) -> None:
    """Raises UserError for settings that cannot work: a missing key, a search whose pages no tool may read.

    crawl_s: the executor's limit for a call of crawl_page; a slow page beyond the limit would count as an
    infrastructure failure. named: the tools for which the executor has limits.
    """
    check_mcp(config.mcp, {tag.name for tag in TAGS.values() if tag.kind is Kind.TOOL})
    known = _tool_names(config)
    for name in named:
        if name not in known:
            raise UserError(f"executor sets a limit for {name}, which is not a tool; tools are {', '.join(known)}")
    services = {
        "search.url": config.search.url,
        "crawl.site": config.crawl.site,
        "crawl.reader": config.crawl.reader,
        "crawl.summary.url": config.crawl.summary.url,
        "judge.url": config.judge.url,
        "wiki.retriever": config.wiki.retriever or None,
    }
    for key, url in services.items():
        if url is not None and not is_web_address(url):
            raise UserError(f"tools.{key} is {redact(url)}, expected an address such as http://127.0.0.1:8000")
    if config.search.url is not None and not config.crawl.leads_somewhere:
        raise UserError(
            "tools.search.url is set, but crawl_page may not read any page: set tools.crawl.open_web=true, or else "
            "tools.crawl.site, reader or allow_hosts"
        )
    if config.crawl.summary.url is not None and not config.crawl.summary.model:
        raise UserError("tools.crawl.summary.url is set, and tools.crawl.summary.model names no model")
    if config.crawl.call_s > crawl_s:
        raise UserError(
            f"a call of crawl_page may take {config.crawl.call_s:g} s by tools.crawl, but the executor stops it after "
            f"{crawl_s:g} s: set executor.call_s_of.crawl_page"
        )
    for variable in (config.search.key_env, config.crawl.reader_key_env, config.crawl.summary.key_env):
        if variable is not None:
            read_key(variable)


def check_called(tools: Iterable[str], config: ToolsConfig, *, articles: bool, site: bool) -> None:
    """Raises UserError if a profile's tag calls a tool (`tools`, by name) that does not exist or is not configured.

    articles, site: whether the world provides them for searches that the configuration leaves unset.
    """
    called, known = set(tools), _tool_names(config)
    for name in sorted(called):
        if name not in known:
            raise UserError(
                f"a profile calls {name}, which is not a tool; tools are {', '.join(known)}, an extension registers "
                f"others (coa.grading.toolset.register), and tools.mcp.SERVER.tags.{name} names one of an MCP server"
            )
    nowhere = {
        "wiki_search": ("wiki.corpus or tools.wiki.retriever", not (config.wiki.configured or articles)),
        "web_search": ("search.url", not (config.search.url or site)),
        "crawl_page": ("crawl.open_web=true", not (config.crawl.leads_somewhere or site)),
    }
    for name, (keys, is_so) in nowhere.items():
        if is_so and name in called - config.mapped:
            raise UserError(
                f"a profile calls {name}, which is not configured: set tools.{keys}, or a tasks.world that has pages"
            )
