import asyncio
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from aiohttp import ClientSession, web

from coa.config import from_plain, load
from coa.errors import ToolDown, UserError
from coa.grading.toolset import ToolsConfig, standard_tools
from coa.http.client import Http, HttpConfig
from coa.tools.base import ToolCall
from coa.tools.layouts import NO_RESULT, Passage
from coa.tools.search.bm25 import open_bm25
from coa.tools.search.server import MAX_TOPK, make_app
from coa.tools.search.wiki import (
    MAX_QUERY_CHARS,
    Backend,
    Retriever,
    TitleLookup,
    WikiConfig,
    WikiSearch,
    open_index,
    wiki_search,
)
from tests.support.corpora import PASSAGES, contents, jsonl, made, store_of, titled
from tests.support.patience import PATIENCE_S

T = TypeVar("T")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "wiki.jsonl", [contents(passage) for passage in PASSAGES])


def call(query: str, layout: str = "plain") -> ToolCall:
    return ToolCall("wiki_search", query, layout=layout)


def test_layouts_show_the_passages(corpus: Path) -> None:
    tool = wiki_search(WikiConfig(corpus=str(corpus), topk=2), HttpConfig())
    arden, berg = PASSAGES[:2]
    assert asyncio.run(tool(call(" Mayor  of ARDEN"))) == f"{arden.text}\n{berg.text}"
    assert asyncio.run(tool(call("mayor of arden", "numbered"))) == (
        f"Doc 1 (Title: Arden) {arden.text}\n\nDoc 2 (Title: Berg) {berg.text}"
    )
    assert json.loads(asyncio.run(tool(call("activist", "json")))) == [
        {"title": "Malcolm X", "text": "Malcolm X was an activist."}
    ]


@pytest.mark.parametrize(
    ("query", "key", "observation"),
    [
        ("", "", "the query is empty"),
        (" \0\t\n", "", "the query is empty"),
        ("\ud800", "", "the query is empty"),
        ("zyx\ud800\0", "zyx", NO_RESULT),
        ("ACTIVIST\0 \udfff", "activist", PASSAGES[3].text),
        ("<&\"'%00\\", "<&\"'%00\\", NO_RESULT),
        ("活动家 🎉", "活动家 🎉", NO_RESULT),
        ("x" * (MAX_QUERY_CHARS + 1), None, "the query has 1001 characters, 1000 are allowed"),
        ("activist " * 125_000, None, "the query has 1125000 characters, 1000 are allowed"),
    ],
)
def test_odd_queries_are_answered(query: str, key: str | None, observation: str, corpus: Path) -> None:
    tool = wiki_search(WikiConfig(corpus=str(corpus)), HttpConfig())
    assert tool.key(call(query)) == key
    assert asyncio.run(tool(call(query))) == observation


def test_a_search_does_not_hold_the_loop(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turned = threading.Event()

    class Slow:
        name = "slow"

        def search(self, query: str, topk: int) -> list[Passage]:
            assert turned.wait(PATIENCE_S), "the loop stood still"
            return [Passage(query, query)]

    monkeypatch.setattr("coa.tools.search.wiki.open_index", lambda config: Slow())

    async def go() -> str:
        tool = wiki_search(WikiConfig(corpus=str(corpus)), HttpConfig())
        searching = asyncio.ensure_future(tool(call("a")))
        await asyncio.sleep(0)
        turned.set()
        return await searching

    assert asyncio.run(go()) == "a"


def test_the_fingerprint_is_that_of_what_is_found(corpus: Path) -> None:
    def fingerprint(**settings: Any) -> str:
        return wiki_search(WikiConfig(**settings), HttpConfig()).fingerprint

    first = fingerprint(corpus=str(corpus))
    assert fingerprint(corpus=str(corpus)) == first
    assert fingerprint(corpus=str(corpus), topk=2) != first
    jsonl(corpus, [titled(PASSAGES[0])])
    assert fingerprint(corpus=str(corpus)) != first
    retrievers = [fingerprint(backend=Backend.retriever, retriever=f"http://{host}") for host in "ab"]
    assert retrievers[0] != retrievers[1]


def test_passages_that_cannot_be_read_are_no_observation(corpus: Path) -> None:
    index = open_bm25(store_of(corpus), "english")
    index._passages._file.close()
    index._passages._file = open("/proc/self/mem", "rb", buffering=0)  # noqa: SIM115  # reading its start fails
    with pytest.raises(ToolDown, match=r"passage 3 of .*: Input/output error"):
        index.search("activist", 3)


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def with_server(handler: Handler, use: Callable[[str], Awaitable[T]]) -> T:
    app = web.Application()
    app.add_routes([web.post("/retrieve", handler)])
    return with_app(app, use)


def with_app(app: web.Application, use: Callable[[str], Awaitable[T]]) -> T:
    """What `use` makes of the address of a server that runs meanwhile."""

    async def go() -> T:
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            return await use(f"http://127.0.0.1:{runner.addresses[0][1]}/retrieve")
        finally:
            await runner.cleanup()

    return asyncio.run(go())


async def asked(url: str, query: str, layout: str = "plain", topk: int = 3) -> str:
    tool = wiki_search(WikiConfig(backend=Backend.retriever, retriever=url, topk=topk), HttpConfig(attempts=2))
    try:
        return await tool(call(query, layout))
    finally:
        await tool.close()


def test_a_retriever_finds_what_the_index_it_serves_finds(corpus: Path) -> None:
    index = open_bm25(store_of(corpus), "english")

    async def use(url: str) -> list[Any]:
        http = Http(HttpConfig())
        found = [await Retriever(http, url, 3)(query) for query in ("mayor of arden", "zyx")]
        await http.close()
        return [*found, await asked(url, "Mayor of Arden", topk=1)]

    assert with_app(make_app(index.search), use) == [index.search("mayor of arden", 3), [], PASSAGES[0].text]


def test_the_server_speaks_the_protocol(corpus: Path) -> None:
    index = open_bm25(store_of(corpus), "english")
    document = {"title": "Malcolm X", "text": PASSAGES[3].text, "contents": f'"Malcolm X"\n{PASSAGES[3].text}'}

    async def use(url: str) -> list[Any]:
        async with ClientSession() as session:
            bodies = [{"queries": ["ACTIVIST \0", "", "zyx"], "topk": 2}, {"queries": []}]
            return [
                await (await session.post(url, json={**body, "return_scores": scores})).json()
                for body in bodies
                for scores in (True, False)
            ]

    score = index.search("activist", 1)[0].score
    assert with_app(make_app(index.search), use) == [
        {"result": [[{"document": document, "score": score}], [], []]},
        {"result": [[document], [], []]},
        {"result": []},
        {"result": []},
    ]


def test_the_server_asks_in_canonical_form_and_answers_others_meanwhile() -> None:
    came = {"first": threading.Event(), "second": threading.Event()}

    def search(query: str, topk: int) -> list[Passage]:
        came[query].set()
        assert came["second"].wait(PATIENCE_S), "the second request was not answered while the first one waited"
        return []

    async def ask(url: str, query: str) -> str:
        async with ClientSession() as session, session.post(url, json={"queries": [query]}) as response:
            return await response.text()

    async def use(url: str) -> list[str]:
        first = asyncio.ensure_future(ask(url, "first"))
        assert await asyncio.to_thread(came["first"].wait, 10)
        return [await ask(url, " SECOND\0 \ud800"), await first]

    assert with_app(make_app(search), use) == ['{"result": [[]]}'] * 2


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"{", "Expecting property name"),
        (b"\xff", "codec can't decode"),
        (b"[" * 100_000, "recursion"),
        (b"[]", "queries: a list is expected"),
        (b'{"queries": "a"}', "queries: a list is expected"),
        (b'{"queries": [1]}', "queries: at most 1000 strings are expected"),
        (json.dumps({"queries": [""] * 1001}).encode(), "queries: at most 1000 strings are expected"),
        (json.dumps({"queries": ["a" * 1001]}).encode(), "queries: a query may have 1000 characters"),
        (b'{"queries": ["a"], "topk": 0}', f"topk: a number from 1 to {MAX_TOPK} is expected"),
        (b'{"queries": ["a"], "topk": true}', f"topk: a number from 1 to {MAX_TOPK} is expected"),
        (b'{"queries": ["a"], "topk": 101}', f"topk: a number from 1 to {MAX_TOPK} is expected"),
    ],
)
def test_the_server_says_what_is_wrong_with_a_request(body: bytes, error: str) -> None:
    async def use(url: str) -> tuple[int, str]:
        headers = {"Content-Type": "application/json; charset=nonsense"}
        async with ClientSession() as session, session.post(url, data=body, headers=headers) as response:
            return response.status, (await response.json())["error"]

    status, why = with_app(make_app(lambda query, topk: []), use)
    assert status == 400
    assert error in why


@pytest.mark.parametrize(
    "found",
    [
        [{"document": contents(PASSAGES[3]), "score": 2.5}, {"document": titled(PASSAGES[0]), "score": 10**400}],
        [{"document": contents(PASSAGES[3]), "score": None}, {"document": titled(PASSAGES[0])}],
        [contents(PASSAGES[3]), titled(PASSAGES[0])],
        [contents(PASSAGES[3]), titled(PASSAGES[0]), titled(PASSAGES[1])],
        [None, contents(PASSAGES[3]), {"title": 7, "text": "odd"}, [], titled(PASSAGES[0])],
    ],
)
def test_every_kind_of_document_is_read(found: list[object]) -> None:
    bodies: list[object] = []

    async def handler(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        return web.json_response({"result": [found]})

    shown = with_server(handler, lambda url: asked(url, "An  Activist", "numbered", topk=2))
    assert shown == f"Doc 1 (Title: Malcolm X) {PASSAGES[3].text}\n\nDoc 2 (Title: Arden) {PASSAGES[0].text}"
    assert bodies == [{"queries": ["an activist"], "topk": 2, "return_scores": True}]


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "<html>",
        "[]",
        '{"result": null}',
        '{"result": []}',
        '{"result": [[], []]}',
        '{"result": ["a"]}',
        '{"result": [["a"]]}',
        '{"result": [[{}]]}',
        '{"result": [[{"document": {"id": "0"}, "score": 1.0}]]}',
        '{"result": [[{"document": null, "score": 1.0}]]}',
        '{"result": [[{"document": {"contents": 7}}]]}',
        '{"result": [[{"contents": "\\ud800"}]]}',
        '{"result": [[{"text": "no title"}, null]]}',
        '{"result": ' + "[" * 100_000,
    ],
)
def test_a_malformed_reply_is_a_retriever_that_is_down(reply: str) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=reply)

    with pytest.raises(ToolDown, match="not a retriever's reply"):
        with_server(handler, lambda url: asked(url, "a"))


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_retriever_that_fails_is_down(status: int) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text="topk: " + "x" * 999)

    with pytest.raises(ToolDown, match=f"/retrieve: status {status}: topk: x{{194}}$"):
        with_server(handler, lambda url: asked(url, "a"))


def test_a_retriever_with_a_fault_of_its_own_is_down() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=500)

    with pytest.raises(ToolDown, match="status 500"):
        with_server(handler, lambda url: asked(url, "a"))


def test_a_query_that_grows_beyond_what_a_retriever_takes_is_never_sent() -> None:
    query = "\u0390" * 400  # each folds to three characters
    assert with_app(make_app(lambda query, topk: []), lambda url: asked(url, query)) == (
        "the query has 1200 characters, 1000 are allowed"
    )


def test_a_retriever_that_is_not_there_is_down() -> None:
    with pytest.raises(ToolDown):
        asyncio.run(asked("http://127.0.0.1:1/retrieve", "a"))


def test_a_search_that_fails_in_the_server_is_a_retriever_that_is_down() -> None:
    def fails(query: str, topk: int) -> list[Passage]:
        raise ToolDown("the disk is gone")

    with pytest.raises(ToolDown, match="status 500"):
        with_app(make_app(fails), lambda url: asked(url, "a"))


SERVER = (sys.executable, "-m", "coa.tools.search.server")


def test_the_server_is_started_from_the_command_line(corpus: Path) -> None:
    command = [*SERVER, "--corpus", str(corpus), "--port", "0", f"index={corpus.with_name('elsewhere')}"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            address = re.search(r"http://127\.0\.0\.1:[1-9]\d*", server.stdout.readline())
            assert address
            assert asyncio.run(asked(f"{address[0]}/retrieve", "activist")) == PASSAGES[3].text
        finally:
            server.terminate()
    assert made(corpus.with_name("elsewhere")) == ["bm25", "passages"]


def test_the_server_names_a_mistake(corpus: Path, tmp_path: Path) -> None:
    open_index(WikiConfig(corpus=str(corpus)))
    for arguments, error in (
        (["--corpus", str(tmp_path / "no.jsonl")], "No such file or directory"),
        (["--corpus", str(corpus), "--host", "192.0.2.1"], "cannot assign requested address"),
        (["--corpus", str(corpus), "--port", "99999"], "port must be 0-65535."),
        (["--corpus", "a.jsonl", "langauge=english"], "unknown key langauge; the nearest known key is language"),
    ):
        ended = subprocess.run([*SERVER, *arguments], capture_output=True, text=True, check=False)
        assert ended.returncode == 2
        assert re.fullmatch(f"coa.tools.search.server: .*{error}\n", ended.stderr)


@pytest.mark.parametrize(
    ("tree", "error"),
    [
        ({"topk": 0}, "topk is 0, expected from 1 to 100"),
        ({"backend": "dense"}, "backend is dense, and corpus names no corpus"),
        ({"backend": "retriever"}, "backend=retriever and retriever, an address, go together"),
        ({"retriever": "http://a"}, "backend=retriever and retriever, an address, go together"),
        (
            {"backend": "retriever", "retriever": "host/retrieve"},
            "retriever is 'host/retrieve', expected",
        ),
        ({"backend": "bm26"}, "backend is 'bm26', expected one of bm25, dense, retriever"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tree: dict[str, object], error: str) -> None:
    with pytest.raises(UserError, match=re.escape(error)):
        from_plain(WikiConfig, tree, "a recipe")


def test_the_configuration_decides_what_is_searched(corpus: Path) -> None:
    articles = {"Arden": "of the tiny world"}
    config = load(ToolsConfig, overrides=[f"wiki.corpus={corpus}"])
    assert isinstance(standard_tools(ToolsConfig(), articles=articles)["wiki_search"], TitleLookup)
    for given in (articles, None):
        tool = standard_tools(config, articles=given)["wiki_search"]
        assert isinstance(tool, WikiSearch)
        assert asyncio.run(tool(call("activist"))) == PASSAGES[3].text
    assert "wiki_search" not in standard_tools(ToolsConfig())


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    heavy = {"bm25s", "Stemmer", "faiss", "sentence_transformers", "torch", "pyarrow", "numba", "scipy"}
    code = "import sys, coa.tools.search.wiki, coa.tools.search.server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not heavy & set(loaded)
