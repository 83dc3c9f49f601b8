"""The tools of the standard profiles, by the name of their tag."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from coa.tools.base import Tool
from coa.tools.code import CodeTool
from coa.tools.http import Http, WebConfig
from coa.tools.sandbox import Sandbox, SandboxConfig
from coa.tools.web import CrawlPage, WebSearch
from coa.tools.wiki import WikiSearch


@dataclass(frozen=True)
class ToolsConfig:
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    web: WebConfig = field(default_factory=WebConfig)


def standard_tools(
    config: ToolsConfig,
    *,
    articles: Mapping[str, str] | None = None,
    site: str | None = None,
    search_headers: Mapping[str, str] | None = None,
) -> dict[str, Tool]:
    """`articles` (title to text) bring wiki_search; `site` (a base URL) brings web_search and crawl_page."""
    tools: dict[str, Tool] = {"code": CodeTool(Sandbox(config.sandbox))}
    if articles is not None:
        tools["wiki_search"] = WikiSearch(articles)
    if site is not None:
        http = Http(config.web)
        tools["web_search"] = WebSearch(http, site, search_headers)
        tools["crawl_page"] = CrawlPage(http, site)
    return tools
