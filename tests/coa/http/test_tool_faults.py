"""Faults between tools and servers: what is tried again, what is reported and as whose fault, what is counted."""

import asyncio
import errno
import gzip
import json
import math
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from actors.tools.executor import ExecutorConfig, ToolExecutor
from actors.tools.stats import ToolStats
from coa.errors import ToolDown
from coa.grading.judge import Judge, JudgeConfig
from coa.http.client import Http, HttpConfig, NoReply, pause_s, resolves, retry_after
from coa.tools.base import Tool, ToolCall
from coa.tools.web.crawl import CrawlConfig, CrawlPage
from coa.tools.web.search import SearchConfig, WebSearch
from coa.tools.web.summary import Summariser, SummaryConfig
from tests.support.servers import Answer, closed_port, raw, response, serving
from tests.support.virtual_time import leaping

QUICK = HttpConfig(pause_s=0.001, max_pause_s=0.01, timeout_s=100)
"""Of pauses; its timeout is only met where a server lets the clock leap."""
LONG_S = 1e6
"""Of limits around it."""
HITS = response("200 OK", json.dumps({"organic": [{"title": "A", "link": "p1", "snippet": "b"}]}).encode())
COMPLETION = {"choices": [{"message": {"content": " short "}}], "usage": {"total_tokens": 12}}
CHAT = response("200 OK", json.dumps(COMPLETION).encode())
PAGE = response("200 OK", b"the page", "Content-Type: text/plain")

GOOD = {
    "search": (HITS, "A p1 b"),
    "site": (PAGE, "the page"),
    "reader": (PAGE, "the page"),
    "summary": (CHAT, "short"),
}
"""Each service of ours: an answer of it, and the observation that comes of it."""
SERVICES = tuple(GOOD)
STRANGER = "stranger"


def make_tool(kind: str, url: str, pages: str) -> tuple[Tool, str]:
    """The tool whose service of this kind is at `url`, and an argument for it; `pages` are always fine."""
    match kind:
        case "search":
            return WebSearch(SearchConfig(), QUICK, f"{url}/search"), "vexon"
        case "site":
            return CrawlPage(CrawlConfig(page_s=LONG_S), QUICK, url), "p1"
        case "reader":
            return CrawlPage(CrawlConfig(reader=f"{url}/", page_s=QUICK.timeout_s), QUICK), "https://example.org/a"
        case "summary":
            config = SummaryConfig(url=f"{url}/v1", model="m", timeout_s=QUICK.timeout_s)
            return CrawlPage(CrawlConfig(summary=config, page_s=LONG_S), QUICK, pages), "p1"
        case _:  # a page of somebody else's
            return CrawlPage(CrawlConfig(allow_hosts=(url.removeprefix("http://"),), page_s=LONG_S), QUICK), f"{url}/p1"


async def call_at(kind: str, url: str) -> tuple[str | ToolDown, ToolStats]:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text="a page to be summarised")

    async with serving(page) as pages:
        tool, argument = make_tool(kind, url, pages)
        executor = ToolExecutor(lambda: {"t": tool}, ExecutorConfig(call_s=LONG_S))
        [answer] = await executor.call_many([ToolCall("t", argument, goal="who")])
        await executor.close()
        return answer, executor.stats()["t"]


def call(kind: str, *connections: Sequence[Answer]) -> tuple[str | ToolDown, int, ToolStats]:
    """What comes of a server that behaves so, how many requests it got, and what was counted."""

    async def go() -> tuple[str | ToolDown, int, ToolStats]:
        async with raw(*connections) as (url, heads):
            answer, stats = await call_at(kind, url)
            return answer, len(heads), stats

    return leaping(go())


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
GZIP, GZIPPED = gzip.compress(b"the page"), ("Content-Encoding: gzip",)
FAULTS: dict[str, tuple[list[Answer], int, str, str]] = {
    "reset": ([None], 4, "reset", "connection closed without an answer"),
    "reset in mid-response": ([PAGE[:-4], None], 4, "cut", "the answer broke off"),
    "half a response": ([response("200 OK", b"x" * 10, length=1000)], 4, "cut", "the answer broke off"),
    "half a chunk": (
        [CHUNKED + b"ff\r\nx"],
        4,
        "cut",
        "the answer broke off",
    ),
    "slow": ([900.0], 2, "timeout", "nothing within 100 s"),
    "trickling": ([PAGE[:-4], *[b"x", 50.0] * 30], 2, "timeout", "nothing within 100 s"),
    "garbage": ([b"\x00\xffgarbage\r\n\r\n"], 1, "", "the answer is not HTTP"),
    "half of what was packed": (
        [response("200 OK", GZIP[:-9], "Content-Encoding: gzip")],
        4,
        "cut",
        "the answer broke off",
    ),
    "unknown packing": (
        [response("200 OK", b"x", "Content-Encoding: br")],
        1,
        "",
        "the answer is packed in a way that was not asked for",
    ),
    "broken packing": (
        [response("200 OK", b"no gzip at all", "Content-Encoding: gzip")],
        1,
        "",
        "the answer cannot be unpacked",
    ),
    "status 500": ([response("500 No")], 4, "status 500", "status 500"),
    "status 429": ([response("429 No", b"", "Retry-After: 3600")], 4, "status 429", "status 429"),
}
"""By name: how each connection goes, requests in all, the reason that retries are counted by, what is said."""


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("kind", SERVICES)
def test_a_service_of_ours_that_fails_is_down(kind: str, name: str) -> None:
    connection, requests, reason, text = FAULTS[name]
    answer, got, stats = call(kind, connection)
    assert isinstance(answer, ToolDown)
    assert str(answer).endswith(f": {text}")
    assert str(answer).startswith("http://127.0.0.1:")
    assert got == requests
    assert (stats.retries, stats.own.get(f"retries: {reason}", 0)) == (requests - 1, requests - 1)
    assert (stats.calls, stats.failures, stats.timeouts) == (1, 1, 0)


@pytest.mark.parametrize("name", FAULTS)
def test_a_page_of_somebody_else_that_fails_is_an_observation(name: str) -> None:
    connection, requests, reason, text = FAULTS[name]
    answer, got, stats = call(STRANGER, connection)
    assert answer == f"no page: {text}"
    assert got == requests
    assert (stats.retries, stats.own.get(f"retries: {reason}", 0)) == (requests - 1, requests - 1)
    assert stats.failures == 0


@pytest.mark.parametrize("kind", SERVICES)
def test_a_service_where_nothing_listens_is_down(kind: str) -> None:
    async def go() -> tuple[str | ToolDown, ToolStats]:
        async with closed_port() as url:
            return await call_at(kind, url)

    answer, stats = asyncio.run(go())
    assert isinstance(answer, ToolDown)
    assert str(answer).endswith(": connection refused")
    assert (stats.retries, stats.own["retries: refused"]) == (3, 3)


@pytest.mark.parametrize(
    ("connections", "requests"),
    [
        ([[response("500 No")], [response("500 No")]], 3),
        ([[response("429 No", b"", "Retry-After: 1")]], 2),
        ([[900.0]], 2),
        ([[None], [PAGE[:-4]], [response("503 No")]], 4),
    ],
    ids=["500 twice", "429 once", "slow once", "three faults"],
)
@pytest.mark.parametrize("kind", SERVICES)
def test_a_fault_that_passes_leaves_no_trace_but_counts(
    kind: str, connections: list[list[Answer]], requests: int
) -> None:
    good, observation = GOOD[kind]
    answer, got, stats = call(kind, *connections, [good])
    assert answer == observation
    assert (got, stats.retries, stats.failures) == (requests, requests - 1, 0)


@pytest.mark.parametrize("kind", ["search", "reader", "summary"])
@pytest.mark.parametrize("status", ["401 No", "402 No", "403 No", "302 Found"])
def test_a_refusal_by_a_service_is_down_at_once(kind: str, status: str) -> None:
    answer, got, _ = call(kind, [response(status)])
    assert isinstance(answer, ToolDown)
    assert str(answer).endswith(f": status {status[:3]}")
    assert got == 1


@pytest.mark.parametrize("kind", ["site", STRANGER])
def test_a_page_that_is_refused_is_an_observation_wherever_it_is(kind: str) -> None:
    answer, got, _ = call(kind, [response("403 No")])
    assert (answer, got) == ("403 no page", 1)


@pytest.mark.parametrize("status", [400, 404, 410, 422, 451])
def test_a_reader_that_finds_no_page_says_so(status: int) -> None:
    answer, _, _ = call("reader", [response(f"{status} No")])
    assert answer == ("404 no such page" if status == 404 else f"{status} no page")


WRONG = (b"", b"{", b"<html>", b"[]", b"{}", b'{"organic": 1, "choices": 1}', b'{"organic": [{}], "choices": [{}]}')


@pytest.mark.parametrize("body", [*WRONG, b"[" * 99999], ids=lambda body: body[:15].decode())
@pytest.mark.parametrize("kind", ["search", "summary"])
def test_an_answer_that_is_none_is_down(kind: str, body: bytes) -> None:
    answer, got, _ = call(kind, [response("200 OK", body)])
    assert isinstance(answer, ToolDown)
    assert "not a " in str(answer)
    assert got == 1


def test_a_summary_without_text_is_down() -> None:
    body = json.dumps({"choices": [{"message": {"content": None}}]}).encode()
    answer, _, _ = call("summary", [response("200 OK", body)])
    assert isinstance(answer, ToolDown)
    assert str(answer).endswith(": a completion without text")


@pytest.mark.parametrize("kind", ["site", "reader", STRANGER])
def test_an_empty_page_is_an_observation(kind: str) -> None:
    answer, _, _ = call(kind, [response("200 OK", b"", "Content-Type: text/plain")])
    assert answer == "an empty page"


def test_what_may_be_secret_in_an_endpoint_s_address_is_not_told() -> None:
    async def go() -> str:
        async with raw([response("403 No")]) as (url, _):
            address = f"{url.replace('http://', 'http://me:s3cret@')}/v1"
            summariser = Summariser(SummaryConfig(url=address, model="m"), QUICK)
            judge = Judge(JudgeConfig(url=address, model="m"), QUICK)
            errors = []
            question = ToolCall("judge", '{"question": "?", "accepted": [], "prediction": ""}')
            for asking in (summariser.summarise("a", "b"), judge(question)):
                with pytest.raises(ToolDown, match="status 403") as down:
                    await asking
                errors.append(str(down.value))
            await summariser.close()
            await judge.close()
            return " ".join(errors)

    assert "s3cret" not in asyncio.run(go())


def test_the_tokens_of_summaries_are_counted() -> None:
    _, _, stats = call("summary", [CHAT])
    assert stats.own["summary tokens"] == 12


def test_what_a_stranger_did_is_asked_again_next_time_and_what_is_gone_is_not() -> None:
    async def go(status: str) -> int:
        async with raw([response(status)]) as (url, heads):
            tool, argument = make_tool(STRANGER, url, "")
            executor = ToolExecutor(lambda: {"t": tool})
            for _ in range(2):
                await executor.call_many([ToolCall("t", argument)])
            await executor.close()
            return len(heads)

    assert asyncio.run(go("403 No")) == 2
    assert asyncio.run(go("404 No")) == 1


def test_a_machine_without_sockets_is_our_fault_whoever_is_asked() -> None:
    def no_socket(_: object) -> socket.socket:
        raise OSError(errno.EMFILE, "no more")

    async def go() -> None:
        connector = partial(aiohttp.TCPConnector, socket_factory=no_socket)
        tool = CrawlPage(CrawlConfig(allow_hosts=("127.0.0.1:9",)), QUICK, connector=connector)
        with pytest.raises(ToolDown, match="no connection can be made here: Too many open files"):
            await tool(ToolCall("crawl_page", "http://127.0.0.1:9/"))
        await tool.close()

    asyncio.run(go())


class Failing(AbstractResolver):
    """Fails as `getaddrinfo` does."""

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[ResolveResult]:
        raise OSError(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def close(self) -> None: ...


@pytest.mark.parametrize("here", ["down", "fine"])
@pytest.mark.parametrize("lacking", ["route", "resolver"])
def test_a_machine_without_a_network_is_our_fault_and_a_page_out_of_reach_is_not(
    lacking: str, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_route(_: object) -> socket.socket:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    async def resolves() -> bool:
        return here == "fine"

    monkeypatch.setattr("coa.http.client.has_route", lambda: here == "fine")
    monkeypatch.setattr("coa.http.client.resolves", resolves)

    async def go() -> str:
        way: Any = {"socket_factory": no_route} if lacking == "route" else {"resolver": Failing()}
        connector = partial(aiohttp.TCPConnector, **way)
        tool = CrawlPage(CrawlConfig(allow_hosts=("192.0.2.1:80", "a.org")), QUICK, connector=connector)
        try:
            return await tool(ToolCall("crawl_page", "http://192.0.2.1/" if lacking == "route" else "http://a.org/"))
        finally:
            await tool.close()

    if here == "fine":
        why = {"route": "cannot be reached", "resolver": "no such host"}[lacking]
        assert asyncio.run(go()) == f"no page: {why}"
    else:
        with pytest.raises(ToolDown, match="no connection can be made here: n"):
            asyncio.run(go())


@pytest.mark.parametrize(("status", "answers"), [(socket.EAI_AGAIN, False), (socket.EAI_NONAME, True)])
def test_a_resolver_that_knows_a_name_or_knows_that_there_is_none_works(
    status: int, answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(status, "no")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert asyncio.run(resolves()) is answers


class Clock:
    """Sleeps that take no time, and are written down."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)


def fetch(config: HttpConfig, *connections: Sequence[Answer]) -> tuple[object, list[float], dict[str, int]]:
    """What a request gave, the pauses before its further attempts, and what was counted; each draw is 0.5."""

    async def go() -> tuple[object, list[float], dict[str, int]]:
        clock = Clock()
        async with raw(*connections) as (url, _):
            http = Http(config, sleep=clock, draw=lambda: 0.5)
            try:
                found: object = (await http.fetch(url)).status
            except NoReply as error:
                found = str(error)
            await http.close()
            return found, clock.slept, dict(http.counts)

    return leaping(go())


def test_pauses_double_and_are_drawn_from_nothing_up() -> None:
    found, slept, counts = fetch(HttpConfig(attempts=5, pause_s=0.1, max_pause_s=0.3), [response("500 No")])
    assert found == "status 500"
    assert slept == [0.05, 0.1, 0.2, 0.3]
    assert counts == {"attempts": 5, "retries": 4, "retries: status 500": 4}


def test_a_server_that_names_a_time_is_given_it_up_to_a_limit() -> None:
    connections = [[response("429 No", b"", f"Retry-After: {value}")] for value in ("2", "3600", "soon")]
    found, slept, _ = fetch(HttpConfig(max_pause_s=30), *connections, [response()])
    assert found == 200
    assert slept == [2.0, 30.0, 0.2]


def test_attempts_that_run_out_of_time_are_fewer() -> None:
    found, slept, counts = fetch(HttpConfig(timeout_s=100, timeouts=3, attempts=9), [900.0])
    assert found == "nothing within 100 s"
    assert len(slept) == 2
    assert counts == {"attempts": 3, "retries": 2, "retries: timeout": 2}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 418, 501])
def test_other_statuses_are_not_tried_again(status: int) -> None:
    assert fetch(HttpConfig(), [response(f"{status} No")]) == (status, [], {"attempts": 1})


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_statuses_that_may_pass_are_tried_again(status: int) -> None:
    found, slept, _ = fetch(HttpConfig(), [response(f"{status} No")], [response()])
    assert (found, len(slept)) == (200, 1)


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    now = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)

    def after(value: str, **headers: str) -> float:
        return retry_after({"Retry-After": value, **headers}, now)

    assert after("7") == 7.0
    assert after("Tue, 01 Jan 2030 12:00:09 GMT") == 9.0
    assert after("Tue, 01 Jan 2030 12:00:09 -0000") == 9.0
    assert (after("1.5"), after(" .5 "), after("3."), after("0.0")) == (1.5, 0.5, 3.0, 0.0)
    assert after("9" * 400) == math.inf
    assert after("Tue, 01 Jan 2030 11:00:00 GMT") == 0.0
    assert after("Tue, 01 Jan 9999 00:00:00 GMT") > 1e11
    no_time = ("", "soon", "-1", "-1.5", "1,5", "1e3", "inf", "nan", ".", "²", f"Mon, 01 Jan {'9' * 20} 00:00:00 GMT")
    assert [after(value) for value in no_time] == [0.0] * len(no_time)
    assert retry_after({}, now) == 0.0
    assert after("Tue, 01 Jan 2030 13:00:09 GMT", Date="Tue, 01 Jan 2030 13:00:00 GMT") == 9.0, "our clock is late"
    assert after("Tue, 01 Jan 2030 11:00:09 GMT", Date="Tue, 01 Jan 2030 11:00:00 GMT") == 9.0, "it is early"
    assert after("Tue, 01 Jan 2030 12:00:09 GMT", Date="today") == 9.0


def test_a_pause_is_never_above_its_limit() -> None:
    config = HttpConfig(pause_s=1.0, max_pause_s=5.0)
    assert [pause_s(config, attempt, 0.999, 0.0) for attempt in (1, 2, 3, 4)] == [0.999, 1.998, 3.996, 5.0]
    assert pause_s(config, 1, 0.0, 3.0) == 3.0
    assert pause_s(config, 1, 0.0, float("inf")) == 5.0


@pytest.mark.parametrize("answer", [response("403 No", b"s3cret is no key"), b"s3cret garbage\r\n\r\n", None])
def test_a_key_is_sent_and_never_told(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_KEY", " s3cret \n")

    async def go() -> tuple[bytes, str | ToolDown]:
        async with raw([answer]) as (url, heads):
            address = f"{url.replace('http://', 'http://user:s3cret@')}/search?key=s3cret"
            tool = WebSearch(SearchConfig(key_env="TEST_KEY"), QUICK, address)
            executor = ToolExecutor(lambda: {"t": tool})
            [down] = await executor.call_many([ToolCall("t", "x")])
            await executor.close()
            return heads[0], down

    head, down = asyncio.run(go())
    assert b"\r\nX-API-KEY: s3cret\r\n" in head
    assert isinstance(down, ToolDown)
    cause: BaseException | None = down
    while cause is not None:
        assert "s3cret" not in f"{cause} {cause!r}"
        cause = cause.__cause__
