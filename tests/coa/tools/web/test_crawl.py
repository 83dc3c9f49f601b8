"""crawl_page and its parts: which addresses may be read, what of a page is shown, and what keeps it out of trouble."""

import asyncio
import gzip
import json
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from coa.errors import ToolDown
from coa.http.client import HttpConfig
from coa.http.unpacking import BadPacking, Unpacker
from coa.tools.base import Fleeting, ToolCall
from coa.tools.web.crawl import CrawlConfig, CrawlPage, read_links
from coa.tools.web.extract import Body, Extractor
from coa.tools.web.summary import SummaryConfig, bm25, relevant, split_parts
from tests.coa.tools.web.test_extract import ARTICLE, RSS
from tests.support.servers import Handler, pages_of, raw, response, serving
from tests.support.virtual_time import leap, leaping

QUICK = HttpConfig(pause_s=0.001, max_pause_s=0.01)


@pytest.mark.parametrize(
    ("argument", "links"),
    [
        ("p1", ["p1"]),
        ("", [""]),
        (" | ", [""]),
        ("http://a.org | http://b.org|http://a.org", ["http://a.org", "http://b.org"]),
        ("[A | B](http://a.org) | <http://b.org>", ["http://a.org", "http://b.org"]),
        ('[A](http://a.org/x_(y) "t")|[](b)', ["http://a.org/x_(y)", "b"]),
        ("[[[[(((", ["[[[[((("]),
        ("a b", ["a b"]),
    ],
)
def test_the_links_of_a_call(argument: str, links: list[str]) -> None:
    assert read_links(argument) == links


def test_a_short_text_is_shown_whole_and_a_long_one_by_its_goal() -> None:
    paragraphs = [f"Paragraph {n} is about the weather in the north." for n in range(40)]
    paragraphs[7] = "Arden elected Berg as its mayor in 1999."
    paragraphs[31] = "Before Berg the mayor was Ruiz."
    text = "\n".join(paragraphs)
    assert relevant(text, "who is the mayor", len(text)) == text
    assert relevant(text, "mayor of Arden", 100) == f"{paragraphs[7]}\n{paragraphs[31]}"
    assert relevant(text, "mayor of Arden", 41) == paragraphs[7]
    assert relevant(text, "", 60) == relevant(text, "xyzzy", 60) == text[:60]


def test_parts_are_paragraphs_or_sentences_or_pieces() -> None:
    assert split_parts("one. two.\n\n three", 20) == ["one. two.", "three"]
    assert split_parts("one is here. two is there! three", 14) == ["one is here.", "two is there!", "three"]
    assert split_parts("abcdefgh", 3) == ["abc", "def", "gh"]
    assert split_parts("北京。上海。", 4) == ["北京。", "上海。"]
    assert split_parts("", 5) == []


def test_rare_words_and_short_parts_score_higher() -> None:
    both, rare, common, none = bm25([["a", "b"], ["b", "x"], ["a", "x", "a"], ["x"]], ["a", "b", "b"])
    assert none == 0.0
    assert both > common > 0
    assert both > rare > 0
    assert bm25([], ["a"]) == []


@pytest.mark.filterwarnings("error")
def test_parts_without_a_word_score_nothing() -> None:
    assert bm25([[], []], ["a"]) == [0.0, 0.0]
    found, nothing = bm25([["a"], []], ["a"])
    assert found > nothing == 0.0


def test_the_words_of_a_long_goal_cost_nothing_for_the_parts_that_lack_them() -> None:
    parts = [["a", "b"]] * 5000
    bm25(parts, ["a"])  # imports what it needs
    began = time.process_time()
    assert bm25(parts, [*map(str, range(20_000)), "a"]) == bm25(parts, ["a"])
    assert time.process_time() - began < 20, "a scan of all parts for each word takes minutes"


def test_unpacking_stops_at_its_limit() -> None:
    unpacker = Unpacker("gzip", 1000)
    unpacker.add(gzip.compress(b"x" * 1_000_000))
    assert (unpacker.body, unpacker.full) == (b"x" * 1000, True)


@pytest.mark.parametrize(
    ("encoding", "packed"),
    [
        ("", b"ab" * 500),
        ("identity", b"ab" * 500),
        ("GZIP", gzip.compress(b"ab" * 500, mtime=0)),
        ("x-gzip", gzip.compress(b"ab" * 500, mtime=0) + b"\x00\x00padding"),
        ("gzip", gzip.compress(b"ab" * 200, mtime=0) + gzip.compress(b"ab" * 300, mtime=0)),
        ("deflate", zlib.compress(b"ab" * 500)),
        ("deflate", zlib.compress(b"ab" * 500)[2:-4]),
    ],
    ids=["none", "identity", "gzip", "padded", "two members", "zlib", "bare"],
)
@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_what_was_packed_comes_out_whole(encoding: str, packed: bytes, size: int) -> None:
    unpacker = Unpacker(encoding, 1 << 20)
    for start in range(0, len(packed), size):
        assert unpacker.full is False
        unpacker.add(packed[start : start + size])
    assert (unpacker.body, unpacker.complete) == (b"ab" * 500, True)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "compress"])
def test_packings_that_were_not_asked_for_are_refused(encoding: str) -> None:
    with pytest.raises(BadPacking):
        Unpacker(encoding, 10)


async def read(tool: CrawlPage, *arguments: str, goal: str = "", layout: str = "plain") -> list[str]:
    try:
        return [await tool(ToolCall("crawl_page", argument, goal, layout)) for argument in arguments]
    finally:
        await tool.close()


def at_site(
    handler: Handler, *arguments: str, config: CrawlConfig | None = None, http: HttpConfig = QUICK
) -> list[str]:
    async def go() -> list[str]:
        async with serving(handler) as url:
            return await read(CrawlPage(config or CrawlConfig(), http, url), *arguments)

    return asyncio.run(go())


def test_pages_are_read_by_link_and_by_address() -> None:
    async def go() -> list[str]:
        async with serving(pages_of({"/p1": "one", "/p2": "two"})) as url:
            return await read(CrawlPage(CrawlConfig(), QUICK, url), "p1", f"{url}/p2", "p9", " ", "p1 | [two](/p2)|p1")

    assert asyncio.run(go()) == ["one", "two", "404 no such page", "404 no such page", "one\n\ntwo"]


def test_too_many_pages_are_left_out_with_a_word() -> None:
    handler = pages_of({f"/{name}": name for name in "abcd"})
    [found] = at_site(handler, "a|b|c|d", config=CrawlConfig(pages=2))
    assert found == "a\n\nb\n\n2 more addresses were left out, 2 are read at a time"


def test_each_page_is_written_in_the_layout_of_the_call() -> None:
    async def go() -> list[str]:
        async with serving(pages_of({"/p1": "one"})) as url:
            return await read(CrawlPage(CrawlConfig(), QUICK, url), "p1|p2", layout="numbered")

    assert asyncio.run(go()) == ["Page [p1] Summary: one\n\nPage [p2] Summary: 404 no such page"]


def test_redirects_are_followed_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    async def redirect(request: web.Request) -> web.StreamResponse:
        n = int(request.path.removeprefix("/"))
        if n:
            raise web.HTTPFound(f"{n - 1}")
        return web.Response(text="end")

    monkeypatch.setattr("coa.tools.web.crawl.MAX_REDIRECTS", 2)
    assert at_site(redirect, "2", "3") == ["end", "too many redirects"]


def test_bytes_of_a_redirect_that_are_no_text_are_quoted() -> None:
    asked: list[bytes] = []

    async def go() -> list[str]:
        first = response("302 Found", b"").replace(b"\r\n", b"\r\nLocation: /caf\xe9\r\n", 1)
        async with raw([first], [response("200 OK", b"x", "Content-Type: text/plain")]) as (url, heads):
            found = await read(CrawlPage(CrawlConfig(), QUICK, url), "a")
            asked.extend(heads)
            return found

    assert asyncio.run(go()) == ["x"]
    assert asked[1].startswith(b"GET /caf%E9 HTTP")


@pytest.mark.parametrize(
    "target", ["http://192.0.2.1/inner", "http://127.0.0.1:1/", "file:///etc/passwd", "http://u:p@a.org/", "//a.org"]
)
def test_a_redirect_to_where_nothing_may_be_read_is_refused(target: str) -> None:
    async def redirect(_: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": target})

    [found] = at_site(redirect, "a")
    assert found.startswith(f"refused: {target} ")


def test_a_page_is_cut_and_shared_out() -> None:
    handler = pages_of({"/a": "a" * 5000, "/b": "b" * 5000})
    assert at_site(handler, "a", http=HttpConfig(max_bytes=1000)) == ["a" * 1000]
    assert at_site(handler, "a", "a|b", config=CrawlConfig(max_chars=10)) == ["a" * 10, "aaaaa\n\nbbbbb"]


@pytest.mark.parametrize("content_type", ["image/png", "application/pdf", "application/octet-stream"])
def test_a_page_that_is_no_text_is_named(content_type: str) -> None:
    handler = pages_of({"/a": web.Response(body=b"\x00", content_type=content_type)})
    assert at_site(handler, "a") == [f"not a text page: {content_type}"]


def test_a_page_without_a_type_and_a_feed_are_read_and_a_pdf_is_named() -> None:
    connections = [
        [response("200 OK", b"<!DOCTYPE html><p>a page")],
        [response("200 OK", RSS.encode("latin-1"), "Content-Type: application/rss+xml")],
        [response("200 OK", b"%PDF-1.7 \xff", "Content-Type: text/html")],
    ]

    async def go() -> list[str]:
        async with raw(*connections) as (url, _):
            return await read(CrawlPage(CrawlConfig(), QUICK, url), "a", "b", "c")

    page, feed, pdf = asyncio.run(go())
    assert (page, pdf) == ("a page", "not a text page: application/pdf")
    assert feed.startswith("Café & bar (Mon, 6 May 2024)")


def test_html_is_read_and_an_unreadable_page_said() -> None:
    article = web.Response(body=ARTICLE, content_type="text/html")
    heavy = web.Response(body=b"<!--" * 300_000, content_type="text/html")
    [found] = at_site(pages_of({"/a": article}), "a", config=CrawlConfig(extract_s=60.0))
    assert found.startswith("Arden\nArden is a town on the river Lune.")
    assert at_site(pages_of({"/b": heavy}), "b", config=CrawlConfig(extract_s=1.0)) == [
        "no page: its text was not found in time"
    ]


def test_pages_that_keep_the_extractors_busy_end_in_time_and_none_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = {f"/{name}": web.Response(body=b"<p>a", content_type="text/html") for name in "abcdefghij"}
    config, begun = CrawlConfig(extractors=1, extract_s=100.0, page_s=100.0), 0

    async def busy(extractor: Extractor, body: Body, deadline: float) -> None:
        nonlocal begun
        begun += 1
        leap(extractor._seconds_until(deadline))
        await asyncio.sleep(0.001)  # those whose time is up go

    monkeypatch.setattr(Extractor, "_read", busy)

    async def go() -> list[str]:
        async with serving(pages_of(pages)) as url:
            tool = CrawlPage(config, QUICK, url)
            found = await asyncio.gather(*(tool(ToolCall("crawl_page", links)) for links in ("a|b|c|d|e", "f|g|h|i|j")))
            await tool.close()
            return found

    found = leaping(go())
    assert found == ["\n\n".join(["no page: its text was not found in time"] * 5)] * 2
    assert all(isinstance(observation, Fleeting) for observation in found)
    assert begun <= 3, "page_s and extract_s are as long as two of them take"


def test_a_page_is_fetched_once_for_several_goals() -> None:
    asked = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text="weather\n" * 100 + "Berg is the mayor\n" + "Ruiz is the judge")

    async def go() -> list[str]:
        async with serving(handler) as url:
            tool = CrawlPage(CrawlConfig(max_chars=20), QUICK, url)
            goals = [ToolCall("crawl_page", "p1", goal) for goal in ("the mayor", "the judge")]
            assert tool.key(goals[0]) != tool.key(goals[1])
            found = await asyncio.gather(*map(tool, goals))
            await tool.close()
            return found

    assert asyncio.run(go()) == ["Berg is the mayor", "Ruiz is the judge"]
    assert asked == ["/p1"]


def test_a_language_model_is_asked_for_the_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUMMARY_KEY", "k3y")
    seen: list[tuple[dict[str, Any], str | None]] = []

    async def chat(request: web.Request) -> web.Response:
        seen.append((await request.json(), request.headers.get("Authorization")))
        return web.json_response({"choices": [{"message": {"content": f"summary {len(seen)}"}}]})

    async def go() -> list[str]:
        async with serving(chat) as model, serving(pages_of({"/a": "page a {x}", "/b": "page b"})) as url:
            summary = SummaryConfig(url=f"{model}/v1/", model="m", key_env="SUMMARY_KEY", max_tokens=7, page_chars=6)
            return await read(CrawlPage(CrawlConfig(summary=summary), QUICK, url), "a", "a|b|c", goal="the goal")

    assert asyncio.run(go()) == ["summary 1", "summary 2\n\nsummary 3\n\n404 no such page"]
    body, key = seen[0]
    assert key == "Bearer k3y"
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("m", 7, 0)
    assert "the goal" in body["messages"][0]["content"]
    assert "The page:\npage a\n" in body["messages"][0]["content"]


def test_a_reader_is_asked_for_public_pages_and_not_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READER_KEY", "k3y")
    asked: list[tuple[str, str | None]] = []

    async def reader(request: web.Request) -> web.Response:
        asked.append((request.raw_path, request.headers.get("Authorization")))
        return web.Response(text="# read", content_type="text/markdown")

    async def go() -> list[str]:
        async with serving(reader) as prefix, serving(pages_of({"/p1": "ours"})) as url:
            config = CrawlConfig(reader=f"{prefix}/", reader_key_env="READER_KEY")
            links = ("https://a.org/x y?b=c%20d#f", "p1", "http://169.254.169.254/meta", "http://localhost/")
            return await read(CrawlPage(config, QUICK, url), *links)

    assert asyncio.run(go()) == [
        "# read",
        "ours",
        "refused: http://169.254.169.254/meta is not on the public internet",
        "refused: http://localhost/ is not on the public internet",
    ]
    assert asked == [("/https://a.org/x%20y?b=c%20d", "Bearer k3y")]


def test_a_page_without_an_end_is_cut_and_one_that_trickles_is_left() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        try:
            while True:
                await answer.write(b"x" * (65536 if request.path == "/fast" else 1))
                await asyncio.sleep(0 if request.path == "/fast" else 0.05)
        except ConnectionError:
            return answer

    async def go() -> tuple[list[str], str]:
        async with serving(endless) as url:
            config = CrawlConfig(allow_hosts=(url.removeprefix("http://"),), max_chars=100)
            hasty, patient = (CrawlPage(replace(config, page_s=page_s), QUICK) for page_s in (0.5, 60.0))
            slow = await hasty(ToolCall("crawl_page", f"{url}/slow"))
            await hasty.close()
            return await read(patient, f"{url}/fast"), slow

    [fast], slow = asyncio.run(go())
    assert fast == "x" * 100
    assert slow == "no page: nothing within 0.5 s"
    assert isinstance(slow, Fleeting)


def test_a_slow_site_of_ours_is_down_whatever_a_page_may_take() -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(9)
        return web.Response()

    http, config = HttpConfig(timeout_s=0.3, pause_s=0.001), CrawlConfig(page_s=0.1)
    with pytest.raises(ToolDown, match=r"nothing within 0\.3 s"):
        at_site(hang, "a", config=config, http=http)


BOMB = """
import asyncio, json, resource, sys
sys.path.insert(0, "tests")
from tests.support.servers import gzip_of_zeros, raw, response
from coa.tools.base import ToolCall
from coa.tools.web.crawl import CrawlConfig, CrawlPage
from coa.http.client import HttpConfig

async def go():
    bomb = response("200 OK", gzip_of_zeros(1024), "Content-Type: text/plain", "Content-Encoding: gzip")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with raw([bomb]) as (url, _):
        tool = CrawlPage(CrawlConfig(), HttpConfig(), url)
        text = await tool(ToolCall("crawl_page", "p1"))
        await tool.close()
    print(json.dumps([len(bomb), text, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before]))

asyncio.run(go())
"""


def test_a_gigabyte_that_travels_as_a_megabyte_is_never_unpacked() -> None:
    done = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, text=True, check=False)
    packed_bytes, text, grown_kib = json.loads(done.stdout)
    assert packed_bytes < 2 << 20
    assert text == "an empty page"  # two mebibytes of NUL are no text
    assert grown_kib < 40 << 10, done.stderr
