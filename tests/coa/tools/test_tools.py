"""The standard tools: search and its servers, how a configuration becomes tools, and the executor as an actor."""

import asyncio
import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from actors.tools.executor import ToolExecutor
from actors.tools.site import Site
from coa.agent.grammar import Kind, Profile, Tag
from coa.agent.profiles import MHQA, PROFILES
from coa.config import load
from coa.demo import World, WorldConfig
from coa.errors import ExecutorLost, ToolDown, UserError
from coa.grading.toolset import REGISTERED, ToolsConfig, check_tools, needs_site, standard_tools
from coa.http.client import HttpConfig
from coa.tasks.loading import load_tasks
from coa.tools.base import Tool, ToolCall
from coa.tools.client import ToolCaller
from coa.tools.layouts import Hit
from coa.tools.sandbox.sandbox import SandboxConfig
from coa.tools.search.wiki import TitleLookup
from coa.tools.web.crawl import CrawlConfig
from coa.tools.web.search import QUERY_CHARS, SearchConfig, WebSearch, clean_query, read_hits
from coa.tools.web.server import PagesOfCorpus, main, make_app, read_query
from tests.support.mcp_server import Served
from tests.support.registries import lend
from tests.support.servers import serving

ARTICLES = {"Vexon Labs": "Vexon Labs is in Arden ."}
PAGES = {"p1": "Vexon Labs : owner Ruiz", "p2": "Vexon Labs history", "p3 x": "a space"}
HITS = {
    "vexon labs owner": [
        {"title": "Vexon Labs", "link": "p1", "snippet": ": owner Diaz"},
        {"title": "History", "link": "p2", "snippet": "of Vexon"},
    ]
}
CORPUS = [
    {"url": "p1", "title": "Vexon Labs", "text": "Vexon Labs makes lamps. Its owner is Ruiz."},
    {"url": "https://example.org/a b?c=d", "title": "Arden", "text": "Arden is a town. Its mayor is Berg."},
    {"url": "p3", "title": "Lune", "text": "The Lune is a river."},
]

WORLDLY = {"wiki_search", "web_search", "crawl_page"}
"""The tools that need something to look things up in."""


async def use(tool: Any, *arguments: str, layout: str = "plain") -> list[str]:
    """The tool's observations; it is closed after them."""
    found = [await tool(ToolCall("t", argument, layout=layout)) for argument in arguments]
    await tool.close()
    return found


def at_tiny_site(config: SearchConfig, *arguments: str, layout: str = "plain") -> list[str]:
    async def go() -> list[str]:
        site = Site(PAGES, HITS)
        url = await site.start()
        found = await use(WebSearch(config, HttpConfig(), f"{url}/search"), *arguments, layout=layout)
        await site.stop()
        return found

    return asyncio.run(go())


def test_the_encyclopedia_of_titles_forgives_case_and_spacing() -> None:
    wiki = TitleLookup(ARTICLES)
    assert asyncio.run(wiki(ToolCall("wiki_search", " vexon   LABS "))) == "Vexon Labs is in Arden ."
    assert asyncio.run(wiki(ToolCall("wiki_search", "Vexon"))) == "no result"
    assert asyncio.run(wiki(ToolCall("wiki_search", " "))) == "the query is empty"


def test_search_shows_a_line_per_hit() -> None:
    found = at_tiny_site(SearchConfig(), "Vexon  labs owner", "nothing")
    assert found == ["Vexon Labs p1 : owner Diaz\nHistory p2 of Vexon", "no result"]


def test_search_shows_as_many_hits_and_characters_as_configured() -> None:
    assert at_tiny_site(SearchConfig(hits=1), "vexon labs owner") == ["Vexon Labs p1 : owner Diaz"]
    assert at_tiny_site(SearchConfig(max_chars=9), "vexon labs owner") == ["Vexon Lab"]


def test_search_writes_in_the_layout_of_the_call() -> None:
    [found] = at_tiny_site(SearchConfig(hits=1), "vexon labs owner", layout="json")
    assert json.loads(found) == [{"title": "Vexon Labs", "link": "p1", "snippet": ": owner Diaz"}]


@pytest.mark.parametrize(
    ("max_chars", "shown"),
    [
        (999, [("Vexon Labs", ": owner Diaz"), ("History", "of Vexon")]),
        (120, [("Vexon Labs", ": owner Diaz"), ("History", "of ")]),
        (66, [("Vexon Labs", ": owner Diaz")]),
        (61, [("Vexon Labs", ": owner")]),
        (9, []),
    ],
)
def test_json_is_cut_as_json(max_chars: int, shown: list[tuple[str, str]]) -> None:
    [found] = at_tiny_site(SearchConfig(max_chars=max_chars), "vexon labs owner", layout="json")
    assert [(hit["title"], hit["snippet"]) for hit in json.loads(found)] == shown
    assert len(found) <= max_chars


def test_what_is_sent_to_a_search_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", "k3y")
    seen: list[tuple[Any, str | None]] = []

    async def service(request: web.Request) -> web.Response:
        seen.append((await request.json(), request.headers.get("X-API-KEY")))
        return web.json_response({"organic": []})

    async def go() -> list[str]:
        async with serving(service) as url:
            tool = WebSearch(SearchConfig(key_env="TEST_KEY", hits=7), HttpConfig(), f"{url}/search")
            return await use(tool, " a\x00b\n\ud800c ", "x" * 3000, "", " \n")

    assert asyncio.run(go()) == ["no result"] * 2 + ["the query is empty"] * 2
    assert seen == [({"q": "a b c", "num": 7}, "k3y"), ({"q": "x" * QUERY_CHARS, "num": 7}, "k3y")]


def test_equal_queries_have_one_key() -> None:
    tool = WebSearch(SearchConfig(), HttpConfig(), "http://127.0.0.1:9/search")
    assert tool.key(ToolCall("web_search", " a \n b")) == tool.key(ToolCall("web_search", "a b", goal="x")) == "a b"
    assert clean_query("é 北京") == "é 北京"


def test_hits_are_read_from_the_service_as_it_writes_them() -> None:
    organic = [
        {"title": "A", "link": "p1", "snippet": "b", "position": 1},
        {"link": "p2", "date": "2 May 2020", "snippet": "c \ud83d"},
        {"title": None, "link": "p3", "sitelinks": []},
    ]
    hits = [Hit("A", "p1", "b"), Hit("", "p2", "2 May 2020: c ?"), Hit("", "p3", "")]
    assert read_hits(json.dumps({"organic": organic}), 5) == hits
    assert read_hits(json.dumps({"organic": organic}), 1) == hits[:1]
    assert read_hits('{"searchParameters": {"q": "x"}}', 5) == []
    assert read_hits('{"organic": null}', 5) == []


@pytest.mark.parametrize(
    ("odd", "shown"),
    [
        ({"title": "B", "snippet": "y"}, []),
        ({"title": "B", "link": None}, []),
        ({"title": "B", "link": ""}, []),
        ({"title": "B", "link": {"href": "p2"}}, []),
        (None, []),
        ("p2", []),
        ([], []),
        ({"title": "B", "link": "p2", "date": 2024, "snippet": 1.5}, [Hit("B", "p2", "2024: 1.5")]),
        ({"title": ["B"], "link": "p2", "date": {"year": 2024}, "snippet": True}, [Hit("", "p2", "")]),
    ],
)
def test_an_odd_hit_costs_no_other_one(odd: object, shown: list[Hit]) -> None:
    good = {"title": "A", "link": "p1", "snippet": "x"}
    assert read_hits(json.dumps({"organic": [odd, good]}), 5) == [*shown, Hit("A", "p1", "x")]
    assert read_hits(json.dumps({"organic": [odd, good]}), 1) == [*shown, Hit("A", "p1", "x")][:1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"message": "Unauthorized."}', "no list as organic"),
        ('{"organic": {}}', "no list as organic"),
        ("[]", "no list as organic"),
        ('{"organic": [{"title": "A"}]}', "no hit has a link"),
    ],
)
def test_what_is_no_search_result_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_hits(text, 5)


def test_a_key_that_is_not_there_is_a_mistake_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    config = SearchConfig(key_env="TEST_KEY")
    with pytest.raises(UserError, match="the environment variable TEST_KEY is not set"):
        WebSearch(config, HttpConfig(), "http://127.0.0.1:9")
    monkeypatch.setenv("TEST_KEY", "k3\ny")
    with pytest.raises(UserError) as wrong:
        WebSearch(config, HttpConfig(), "http://127.0.0.1:9")
    assert str(wrong.value) == "the environment variable TEST_KEY holds characters that a key can't have"


def corpus_file(folder: Path, *rows: object) -> Path:
    path = folder / "pages.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_corpus_is_searched_and_its_pages_are_read(tmp_path: Path) -> None:
    pages = PagesOfCorpus(corpus_file(tmp_path, *CORPUS))
    assert pages.read("https://example.org/a b?c=d") == pages.read("https://example.org/a%20b?c=d")

    async def go() -> tuple[list[str], list[str], list[str]]:
        runner = web.AppRunner(make_app(pages.find, pages.read))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        config = ToolsConfig(search=SearchConfig(url=f"{url}/search"), crawl=CrawlConfig(site=url))
        tools: Any = standard_tools(config)
        found = await use(tools["web_search"], "who is the owner of vexon labs", "mayor of Arden", "zebra")
        read = await use(tools["crawl_page"], "p1", "p9")
        through: Any = standard_tools(ToolsConfig(crawl=CrawlConfig(reader=f"{url}/")))["crawl_page"]
        as_reader = await use(
            through, "https://example.org/a b?c=d#e", "https://example.org/a%20b?c=d", "https://b.org"
        )
        await runner.cleanup()
        return found, read, as_reader

    found, read, as_reader = asyncio.run(go())
    assert found == [
        "Vexon Labs p1 Vexon Labs makes lamps. Its owner is Ruiz.",
        "Arden https://example.org/a b?c=d Arden is a town. Its mayor is Berg.",
        "no result",
    ]
    assert read == ["Vexon Labs\nVexon Labs makes lamps. Its owner is Ruiz.", "404 no such page"]
    assert as_reader == ["Arden\nArden is a town. Its mayor is Berg."] * 2 + ["404 no such page"]


@pytest.mark.parametrize("row", [{"title": "a", "text": "b"}, {"url": "", "title": "a", "text": "b"}, {"url": "a"}, 7])
def test_a_corpus_with_a_bad_row_is_refused_with_its_line(tmp_path: Path, row: object) -> None:
    path = corpus_file(tmp_path, CORPUS[0], row)
    with pytest.raises(UserError, match=f"^corpus {path}, line 2: "):
        PagesOfCorpus(path)


def test_a_port_that_does_not_exist_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--corpus", str(corpus_file(tmp_path, *CORPUS)), "--port", "99999"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == "coa.tools.web.server: bind(): port must be 0-65535."


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"q": ""}', b'{"q": 1}', b'{"q": "a", "num": 0}', b'{"q": "a", "num": true}']
)
def test_a_search_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"expected|Expecting"):
        read_query(body)


def test_a_search_without_a_number_asks_for_ten_and_never_for_many() -> None:
    assert read_query(b'{"q": "a", "page": 2}') == ("a", 10)
    assert read_query(b'{"q": "a", "num": 100000}') == ("a", 100)


def made(config: ToolsConfig, site: str | None = "http://127.0.0.1:9") -> dict[str, Tool]:
    return standard_tools(config, articles=ARTICLES, site=site)


def test_tools_come_from_the_configuration_and_else_from_a_world(tmp_path: Path) -> None:
    assert {"code", *WORLDLY} <= set(made(ToolsConfig()))
    assert not WORLDLY & set(standard_tools(ToolsConfig()))
    assert isinstance(made(ToolsConfig())["wiki_search"], TitleLookup)
    corpus = corpus_file(tmp_path, *CORPUS)
    overrides = [f"wiki.corpus={corpus}", "search.url=http://127.0.0.1:9/s", "crawl.open_web=true"]
    tools: Any = made(load(ToolsConfig, overrides=overrides), site=None)
    assert {"code", *WORLDLY} <= set(tools)
    [found] = asyncio.run(use(tools["wiki_search"], "owner of vexon labs"))
    assert "Its owner is Ruiz" in found


def test_a_worlds_site_is_needed_where_no_search_is_configured() -> None:
    assert needs_site(ToolsConfig(crawl=CrawlConfig(open_web=True)))
    assert not needs_site(ToolsConfig(search=SearchConfig(url="http://127.0.0.1:9/search")))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["search.url=http://a/search"], "crawl_page may not read any page: set tools.crawl.open_web=true"),
        (["crawl.summary.url=http://a/v1"], "tools.crawl.summary.model names no model"),
        (["search.key_env=NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["crawl.reader_key_env=NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["crawl.summary.key_env=NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (
            ["search.url=localhost:80/search"],
            "tools.search.url is localhost:80/search, expected an address such as http",
        ),
        (["crawl.site=''"], "tools.crawl.site is , expected"),
        (["crawl.reader=ftp://a/"], "tools.crawl.reader is ftp://a/, expected"),
        (["crawl.summary.url=http://["], "tools.crawl.summary.url is http://"),
        (["judge.url=http://me:s3cret@a/v1?key=s3cret"], "tools.judge.url is http://a/v1, expected an address"),
        (["wiki.backend=retriever", "wiki.retriever=http://"], "tools.wiki.retriever is http"),
        (["crawl.page_s=28"], "may take 33 s by tools.crawl, but the executor stops it after 30 s"),
        (["crawl.summary.url=http://a/v1", "crawl.summary.model=m"], "may take 80 s by tools.crawl"),
    ],
)
def test_a_configuration_that_cannot_work_is_a_mistake(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_tools(load(ToolsConfig, overrides=overrides), crawl_s=30)


def test_a_limit_for_what_is_no_tool_is_a_mistake() -> None:
    check_tools(ToolsConfig(), crawl_s=30, named=["code", "crawl_page", "judge"])
    with pytest.raises(UserError, match="executor sets a limit for crawl_pag, which is not a tool; tools are code, "):
        check_tools(ToolsConfig(), crawl_s=30, named=["crawl_pag"])


def profile_that_calls(tool: str) -> Profile:
    return replace(MHQA, name="own", tags=(*MHQA.tags, Tag(tool, Kind.TOOL, "sums")))


def test_a_profile_that_calls_what_is_no_tool_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, recipe = map(import_module, ("jobs.recipe.checks", "jobs.recipe.schema"))
    lend(monkeypatch, PROFILES, "own", profile_that_calls("abacus"))
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f'{{"question": "{n} ?", "answer": "1", "profile": "own"}}\n' for n in range(20)))
    settings = [f"tasks.path={path}", f"run_dir={tmp_path / 'run'}", "tasks.world=tiny", "agent.limits.max_tokens=256"]
    config = load(recipe.Recipe, overrides=settings)
    [profile] = {task.profile for task in load_tasks(str(path), profile="mhqa")}
    for check in (lambda: checks.check_run(config), lambda: checks.check_services(config, {"exact"}, {profile})):
        with pytest.raises(UserError, match="a profile calls abacus, which is not a tool; tools are code, wiki_search"):
            check()
    lend(monkeypatch, REGISTERED, "abacus", lambda: TitleLookup({}))
    checks.check_run(config)
    checks.check_services(config, {"exact"}, {profile})


def test_a_tool_with_a_defect_and_a_dead_executor_are_down(ray_session: None) -> None:
    ray: Any = import_module("ray")
    remote = import_module("actors.tools.remote")

    class Broken(TitleLookup):
        def key(self, call: ToolCall) -> str:
            return {}[call.argument]

    executor = ray.remote(ToolExecutor).options(num_cpus=0.1).remote(lambda: {"t": Broken({})})

    async def go() -> None:
        use_tool = ToolCaller(remote.ToolClient(executor), "test").in_order("call")
        with pytest.raises(ToolDown, match=r"^t raised KeyError: 'arden'$"):
            await use_tool(ToolCall("t", "arden"))
        ray.kill(executor)
        with pytest.raises(ExecutorLost):
            await use_tool(ToolCall("t", "arden"))

    asyncio.run(go())


def test_configurations_that_can_work() -> None:
    for overrides in ([], ["search.url=http://a/s", "crawl.site=http://a"], ["crawl.reader=https://r/"]):
        check_tools(load(ToolsConfig, overrides=overrides), crawl_s=30)


def test_site_and_executor_work_as_ray_actors(ray_session: None) -> None:
    ray: Any = import_module("ray")
    site = ray.remote(Site).options(num_cpus=0.1).remote(PAGES, HITS)
    base_url = ray.get(site.start.remote())
    config = ToolsConfig(sandbox=SandboxConfig(wall_s=3.0))
    make_tools = partial(standard_tools, config, articles=ARTICLES, site=base_url)
    executor = ray.remote(ToolExecutor).options(num_cpus=0.1).remote(make_tools)
    calls = [
        ToolCall("web_search", "Vexon Labs owner"),
        ToolCall("crawl_page", "p1"),
        ToolCall("crawl_page", "p3 x"),
        ToolCall("wiki_search", "vexon labs"),
        ToolCall("code", "print(6 * 7)"),
        ToolCall("code", "import time; time.sleep(9)"),
    ]
    answers = ray.get(executor.call_many.remote(calls))
    ray.get(site.stop.remote())
    ray.get(executor.close.remote())
    assert answers == [
        "Vexon Labs p1 : owner Diaz\nHistory p2 of Vexon",
        "Vexon Labs : owner Ruiz",
        "a space",
        "Vexon Labs is in Arden .",
        "42",
        "stopped: over the limit of 3 s",
    ]
    assert ray.get(executor.stats.remote())["code"].calls == 2
    [down] = ray.get(executor.call_many.remote([ToolCall("crawl_page", "p2")]))
    assert isinstance(down, ToolDown)


@pytest.mark.slow
def test_executors_of_a_run_use_what_the_recipe_names_else_its_world(ray_session: None, tmp_path: Path) -> None:
    ray: Any = import_module("ray")
    services, recipe = import_module("jobs.stages.services"), import_module("jobs.recipe.schema")
    world_of = import_module("jobs.recipe.worlds").world_of
    console = import_module("jobs.run.console").Console(StringIO(), StringIO())
    corpus = corpus_file(tmp_path, *CORPUS)

    def answers(*overrides: str) -> list[str]:
        config = load(recipe.Recipe, overrides=["placement.tool_cpus=0.1", "tasks.world=tiny", *overrides])
        pages = World(WorldConfig()).site_pages
        page = next(iter(pages))

        async def go() -> list[str]:
            run = SimpleNamespace(config=config, world=world_of(config), console=console)
            async with services.tool_client(run) as tools:
                calls = [
                    ("wiki_search", "owner of Vexon Labs"),
                    ("crawl_page", page),
                    ("crawl_page", "http://127.0.0.1/"),
                ]
                use_tool = ToolCaller(tools, "test").in_order("call")
                return [await use_tool(ToolCall(*call)) for call in calls]

        found = asyncio.run(go())
        assert found[1] == pages[page]
        return found

    assert ray.is_initialized()
    assert answers()[::2] == ["no result", "refused: http://127.0.0.1/ is not an address that may be read"]
    found = answers(f"tools.wiki.corpus={corpus}", "tools.crawl.open_web=true")
    assert "Its owner is Ruiz" in found[0]
    assert found[2] == "refused: http://127.0.0.1/ is not on the public internet"
    with pytest.raises(UserError, match=f"^corpus {tmp_path / 'gone.jsonl'}: "):
        answers(f"tools.wiki.corpus={tmp_path / 'gone.jsonl'}")

    served = Served()
    of_mcp = [f"tools.mcp.weather.url={served.url}", "tools.mcp.weather.tags.wiki_search.tool=get_forecast"]
    assert answers(*of_mcp)[0] == "owner of Vexon Labs: rain for 1 days"
    with pytest.raises(UserError, match=r"^tools\.mcp\.weather\.tags\.wiki_search: .* has no tool gone; it has get_"):
        answers(*of_mcp, "tools.mcp.weather.tags.wiki_search.tool=gone")
    served.stop()
