"""Proxies: which requests go through the one that the environment names, and what is said of one that fails."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from coa.distill.sources.recorder import RecorderConfig, serving
from coa.errors import ToolDown, UserError
from coa.http.client import Http, HttpConfig, NoReply
from coa.http.proxies import proxy_of
from coa.llm.client import Endpoint, EndpointConfig
from coa.tools.base import ToolCall
from coa.tools.web.crawl import CrawlConfig, CrawlPage
from tests.support.asking import ASKED, QUICK
from tests.support.recordings import post
from tests.support.servers import closed_port, raw, response

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "REQUEST_METHOD")
CHAT = response("200 OK", b'{"choices": [{"message": {"content": "7"}}]}')
OURS = HttpConfig(attempts=1)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://a.example/v1", "http://plain:3128"),
        ("https://a.example/v1", "http://user:word@tls:3128"),
        ("http://10.1.2.3:8000/v1", "http://plain:3128"),
        ("http://b.corp/v1", None),
        ("https://inner.example:8443/v1", None),
        ("https://inner.example/v1", "http://user:word@tls:3128"),
        ("http://localhost:8000/v1", None),
        ("http://api.localhost/v1", None),
        ("http://127.0.0.1:8000/v1", None),
        ("http://127.9.9.9/v1", None),
        ("http://[::1]:8000/v1", None),
        ("http://0.0.0.0:8000/v1", None),
    ],
)
def test_the_proxy_is_that_of_the_scheme_and_never_stands_before_this_machine(
    url: str, proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "plain:3128")
    monkeypatch.setenv("https_proxy", "http://user:word@tls:3128")
    monkeypatch.setenv("NO_PROXY", ".corp,inner.example:8443")
    assert proxy_of(URL(url)) == (URL(proxy) if proxy else None)


def test_one_variable_may_name_the_proxy_of_all_schemes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proxy_of(URL("https://a.example")) is None
    monkeypatch.setenv("ALL_PROXY", "http://all:1")
    assert proxy_of(URL("https://a.example")) == URL("http://all:1")
    monkeypatch.setenv("NO_PROXY", "*")
    assert proxy_of(URL("https://a.example")) is None


@pytest.mark.parametrize("address", ["socks5://u:word@p:1080", "http://", "http://[p"])
def test_a_proxy_that_can_not_be_asked_is_named_without_its_password(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", address)
    with pytest.raises(
        UserError, match=r"the proxy of https addresses is .*, expected one such as http://proxy:3128"
    ) as e:
        proxy_of(URL("https://a.example/v1"))
    assert "word" not in str(e.value)


def through(*connections: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, list[bytes]]:
    """What the client of a model says of an endpoint behind a proxy that answers so; the heads that the proxy got."""

    async def go() -> tuple[str, list[bytes]]:
        async with raw(*connections) as (proxy, heads):
            for name in ("HTTP_PROXY", "HTTPS_PROXY"):
                monkeypatch.setenv(name, proxy.replace("//", "//user:word@"))
            endpoint = Endpoint(EndpointConfig(url=url, **{**QUICK, "attempts": 1}))
            try:
                said = (await endpoint.complete(ASKED, seed=1)).text
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            await endpoint.close()
            return said.replace(proxy, "PROXY"), heads

    return asyncio.run(go())


def test_an_endpoint_is_asked_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    text, [head] = through([CHAT], url="http://a.example/v1", monkeypatch=monkeypatch)
    assert text == "7"
    assert head.startswith(b"POST http://a.example/v1/chat/completions HTTP/1.1\r\n")
    assert b"Proxy-Authorization: Basic dXNlcjp3b3Jk\r\n" in head


def test_a_proxy_that_refuses_is_told_from_an_endpoint_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    said, [head] = through([response("407 No")], url="https://a.example/v1", monkeypatch=monkeypatch)
    assert head.startswith(b"CONNECT a.example:443 HTTP/1.1\r\n")
    assert said == (
        "EndpointDown: https://a.example/v1/chat/completions: refused with status 407 (through the proxy PROXY)"
    )


def test_a_proxy_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> str:
        async with closed_port() as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy)
            http = Http(OURS)
            with pytest.raises(NoReply) as caught:
                await http.fetch("http://a.example/")
            await http.close()
            return str(caught.value).replace(proxy, "PROXY")

    assert asyncio.run(go()) == "connection refused (through the proxy PROXY)"


def test_the_recorder_passes_calls_on_through_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> tuple[tuple[int, bytes], bytes]:
        async with raw([response("200 OK", b"{}")]) as (proxy, heads):
            monkeypatch.setenv("HTTP_PROXY", proxy)
            async with serving(RecorderConfig(upstream="http://a.example/v1", folder=tmp_path)) as url:
                return await post(f"{url}/v1"), heads[0]

    reply, head = asyncio.run(go())
    assert reply == (200, b"{}")
    assert head.startswith(b"POST http://a.example/v1/chat/completions HTTP/1.1\r\n")


def test_an_endpoint_on_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> tuple[str, int]:
        async with raw([CHAT]) as (own, heads), raw([response("502 No")]) as (proxy, asked):
            monkeypatch.setenv("HTTP_PROXY", proxy)
            endpoint = Endpoint(EndpointConfig(url=f"{own}/v1", **QUICK))
            text = (await endpoint.complete(ASKED, seed=1)).text
            await endpoint.close()
            return text, len(heads) - len(asked)

    assert asyncio.run(go()) == ("7", 1)


def test_pages_that_a_policy_names_are_not_fetched_through_a_proxy_which_would_look_their_addresses_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def go() -> tuple[str, int]:
        async with raw([response("200 OK", b"inner", "Content-Type: text/plain")]) as (proxy, asked):
            monkeypatch.setenv("HTTP_PROXY", proxy)
            page = CrawlPage(CrawlConfig(open_web=True), OURS)
            try:
                found = await page(ToolCall("crawl_page", "http://a.invalid/"))
            except ToolDown as error:  # a machine without a resolver
                found = str(error)
            await page.close()
            return found, len(asked)

    found, asked = asyncio.run(go())
    assert asked == 0
    assert found in (
        "no page: no such host",
        "no connection can be made here: names are not resolved; pages of other servers are not fetched through a "
        "proxy, but by a reader (tools.crawl.reader)",
    )
