import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from importlib import import_module
from typing import Any

import pytest
from aiohttp import web

from actors.site import Site
from actors.tools import ExecutorConfig, ToolExecutor
from coa.errors import ToolDown
from coa.tools.base import Tool, ToolCall
from coa.tools.http import Http, WebConfig
from coa.tools.standard import ToolsConfig, standard_tools
from coa.tools.web import CrawlPage, WebSearch, html_text, render_hits
from coa.tools.wiki import WikiSearch

ARTICLES = {"Vexon Labs": "Vexon Labs is in Arden ."}
PAGES = {"p1": "Vexon Labs : owner Ruiz", "p2": "Vexon Labs history"}
HITS = {
    "vexon labs owner": [
        {"title": "Vexon Labs", "link": "p1", "snippet": ": owner Diaz"},
        {"title": "History", "link": "p2", "snippet": "of Vexon"},
    ]
}


def with_site(use: Callable[[str], Awaitable[object]]) -> object:
    async def go() -> object:
        site = Site(PAGES, HITS)
        base_url = await site.start()
        try:
            return await use(base_url)
        finally:
            await site.stop()

    return asyncio.run(go())


def with_server(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], argument: str, config: WebConfig
) -> str:
    """What CrawlPage makes of a server's replies."""

    async def go() -> str:
        app = web.Application()
        app.add_routes([web.get("/{path:.*}", handler)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = Http(config)
        try:
            return await CrawlPage(http, f"http://127.0.0.1:{runner.addresses[0][1]}")(argument)
        finally:
            await http.close()
            await runner.cleanup()

    return asyncio.run(go())


class Scripted:
    """A tool that answers `argument!` after a moment, or fails as many times as it was told."""

    def __init__(self, cacheable: bool = True, fail: int = 0, seconds: float = 0.01) -> None:
        self.cacheable = cacheable
        self.fail = fail
        self.seconds = seconds
        self.made = 0
        self.running = 0
        self.most = 0

    async def __call__(self, argument: str) -> str:
        self.made += 1
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.running -= 1
        if self.made <= self.fail:
            raise ToolDown("gone")
        return f"{argument}!"


def execute(tools: Mapping[str, Tool], *rounds: list[ToolCall], config: ExecutorConfig | None = None) -> tuple:
    async def go() -> tuple:
        executor = ToolExecutor(lambda: tools, config)
        return [await executor.call_many(calls) for calls in rounds], executor.stats()

    return asyncio.run(go())


def test_the_encyclopedia_forgives_case_and_spacing() -> None:
    wiki = WikiSearch(ARTICLES)
    assert asyncio.run(wiki(" vexon   LABS ")) == "Vexon Labs is in Arden ."
    assert asyncio.run(wiki("Vexon")) == "no result"


def test_search_shows_a_line_per_hit() -> None:
    async def search(base_url: str) -> list[str]:
        tool = WebSearch(Http(WebConfig()), base_url)
        found = [await tool("Vexon  labs owner"), await tool("nothing")]
        await tool.close()
        return found

    assert with_site(search) == ["Vexon Labs p1 : owner Diaz\nHistory p2 of Vexon", "no result"]


def test_search_asks_for_as_many_hits_as_configured() -> None:
    async def search(base_url: str) -> str:
        tool = WebSearch(Http(WebConfig(hits=1)), base_url)
        found = await tool("vexon labs owner")
        await tool.close()
        return found

    assert with_site(search) == "Vexon Labs p1 : owner Diaz"


def test_pages_are_read_by_link_and_by_address() -> None:
    async def crawl(base_url: str) -> list[str]:
        tool = CrawlPage(Http(WebConfig()), base_url)
        found = [await tool(link) for link in ("p1", f"{base_url}/p2", "p9")]
        await tool.close()
        return found

    assert with_site(crawl) == ["Vexon Labs : owner Ruiz", "Vexon Labs history", "404 no such page"]


@pytest.mark.parametrize(
    "link",
    [
        "http://example.org/x",
        "file:///etc/passwd",
        "//example.org",
        "http://127.0.0.1:1/",
        "http://[",
        "http://u@127.0.0.1:9/",
        "http://allowed.example:81/",
        "a\nb",
    ],
)
def test_other_hosts_are_refused(link: str) -> None:
    tool = CrawlPage(Http(WebConfig(allow_hosts=("allowed.example",))), "http://127.0.0.1:9")
    assert asyncio.run(tool(link)) == f"refused: {link} is not an address that may be read"


def test_a_redirect_to_another_host_is_refused() -> None:
    async def redirect(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("http://192.0.2.1/inner")

    assert (
        with_server(redirect, "a", WebConfig()) == "refused: http://192.0.2.1/inner is not an address that may be read"
    )


def test_a_redirect_within_the_site_is_followed() -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        if request.path == "/a":
            raise web.HTTPFound("/b")
        return web.Response(text=request.path)

    assert with_server(redirect, "a", WebConfig()) == "/b"


def test_a_large_page_is_cut() -> None:
    async def large(_: web.Request) -> web.StreamResponse:
        return web.Response(text="x" * 1_000_000)

    assert with_server(large, "a", WebConfig(max_bytes=1000)) == "x" * 1000
    assert with_server(large, "a", WebConfig(max_chars=10)) == "x" * 10


def test_a_page_that_is_not_text_is_named() -> None:
    async def image(_: web.Request) -> web.StreamResponse:
        return web.Response(body=b"\x00", content_type="image/png")

    assert with_server(image, "a", WebConfig()) == "not a text page: image/png"


def test_a_site_that_hangs_is_down() -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(1)
        return web.Response(text="late")

    with pytest.raises(ToolDown, match=r"nothing within 0\.2 s"):
        with_server(hang, "a", WebConfig(timeout_s=0.2))


def test_a_server_error_is_tried_again_and_then_down() -> None:
    tries = []

    async def flaky(_: web.Request) -> web.StreamResponse:
        tries.append(1)
        return web.Response(status=503) if len(tries) < 3 else web.Response(text="fine")

    async def broken(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    assert with_server(flaky, "a", WebConfig()) == "fine"
    with pytest.raises(ToolDown, match="status 500"):
        with_server(broken, "a", WebConfig())


def test_a_site_that_is_gone_is_down() -> None:
    async def search() -> str:
        http = Http(WebConfig())
        try:
            return await WebSearch(http, "http://127.0.0.1:9")("x")
        finally:
            await http.close()

    with pytest.raises(ToolDown):
        asyncio.run(search())


def test_a_query_that_the_service_dislikes_finds_nothing() -> None:
    async def refuse(_: web.Request) -> web.Response:
        return web.Response(status=400)

    async def go() -> str:
        app = web.Application()
        app.add_routes([web.post("/search", refuse)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        tool = WebSearch(Http(WebConfig()), f"http://127.0.0.1:{runner.addresses[0][1]}")
        found = await tool("")
        await tool.close()
        await runner.cleanup()
        return found

    assert asyncio.run(go()) == "no result"


def test_html_becomes_its_visible_words() -> None:
    page = "<html><style>p{}</style><body><h1>A &amp; B</h1>\n<p>c<script>x()</script> d</p></body></html>"
    assert html_text(page) == "A & B c d"


def test_hits_are_single_spaced() -> None:
    assert render_hits('{"organic": [{"title": "A\\n b", "link": "p1", "snippet": "c  d"}]}', 5) == "A b p1 c d"
    assert render_hits('{"organic": []}', 5) == "no result"


def test_answers_come_in_the_order_of_the_calls() -> None:
    [answers], _ = execute({"t": Scripted()}, [ToolCall("t", "b"), ToolCall("x", ""), ToolCall("t", "a")])
    assert answers == ["b!", "there is no tool x", "a!"]


def test_equal_calls_are_made_once() -> None:
    tool = Scripted()
    rounds, stats = execute({"t": tool}, [ToolCall("t", "a")] * 3, [ToolCall("t", "a")])
    assert rounds == [["a!"] * 3, ["a!"]]
    assert tool.made == 1
    assert (stats["t"].calls, stats["t"].hits, stats["t"].failures) == (4, 3, 0)
    assert stats["t"].seconds > 0


def test_a_tool_that_is_not_cacheable_is_called_each_time() -> None:
    tool = Scripted(cacheable=False)
    execute({"t": tool}, [ToolCall("t", "a")] * 3)
    assert tool.made == 3


def test_a_failure_is_a_value_and_is_not_kept() -> None:
    tool = Scripted(fail=1)
    [first, second], stats = execute({"t": tool}, [ToolCall("t", "a")] * 2, [ToolCall("t", "a")])
    assert [type(answer) for answer in first] == [ToolDown, ToolDown]
    assert second == ["a!"]
    assert stats["t"].failures == 2


def test_calls_of_one_tool_are_bounded() -> None:
    tool = Scripted()
    execute({"t": tool}, [ToolCall("t", str(n)) for n in range(9)], config=ExecutorConfig(concurrency=2))
    assert tool.most == 2


def test_a_call_over_its_time_is_down() -> None:
    [[answer]], _ = execute({"t": Scripted(seconds=9)}, [ToolCall("t", "a")], config=ExecutorConfig(call_s=0.05))
    assert str(answer) == "t: nothing within 0.05 s"


def test_the_oldest_observation_leaves_a_full_cache() -> None:
    tool = Scripted()
    calls = [[ToolCall("t", name)] for name in "abca"]
    execute({"t": tool}, *calls, config=ExecutorConfig(cache_entries=2))
    assert tool.made == 4


def test_a_cancelled_caller_does_not_take_the_call_away_from_others() -> None:
    async def go() -> list[str | ToolDown]:
        executor = ToolExecutor(lambda: {"t": Scripted(seconds=0.1)})
        first = asyncio.ensure_future(executor.call_many([ToolCall("t", "a")]))
        second = asyncio.ensure_future(executor.call_many([ToolCall("t", "a")]))
        await asyncio.sleep(0.02)
        first.cancel()
        return await second

    assert asyncio.run(go()) == ["a!"]


def test_site_and_executor_work_as_ray_actors(ray_session: None) -> None:
    ray: Any = import_module("ray")
    site = ray.remote(Site).options(num_cpus=0.1).remote(PAGES, HITS)
    base_url = ray.get(site.start.remote())
    make_tools = partial(standard_tools, ToolsConfig(), articles=ARTICLES, site=base_url)
    executor = ray.remote(ToolExecutor).options(num_cpus=0.1).remote(make_tools)
    calls = [
        ToolCall("web_search", "Vexon Labs owner"),
        ToolCall("crawl_page", "p1"),
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
        "Vexon Labs is in Arden .",
        "42",
        "stopped: over the limit of 7 s",
    ]
    assert ray.get(executor.stats.remote())["code"].calls == 2
    [down] = ray.get(executor.call_many.remote([ToolCall("crawl_page", "p2")]))
    assert isinstance(down, ToolDown)
