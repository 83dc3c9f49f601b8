"""Which addresses may be read: of links, of redirects, and of what names turn out to lead to."""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from ipaddress import IPv4Network

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from coa.http import addresses
from coa.http.addresses import NotAllowed, Reach, is_public, is_web_address, read_link, redact
from coa.http.client import HttpConfig
from coa.tools.base import ToolCall
from coa.tools.web.crawl import CrawlConfig, CrawlPage
from tests.support.servers import Names, pages_of, raw, response, serving

EXAMPLE = "https://example.org/page"
OPEN = Reach(open_web=True)

PUBLIC = ["93.184.216.34", "1.1.1.1", "172.32.0.1", "100.128.0.1", "192.0.1.1", "2606:4700::1", "2a00:1450::1"]
INNER = [
    *("0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.9.9.9", "169.254.169.254", "172.16.0.1", "172.31.255.255"),
    *("192.0.0.1", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:93.184.216.34", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1"),
    *("100::1", "2001::1", "2001:db8::1", "2002:7f00:1::", "3fff::1", "fc00::1", "fd12::1", "fe80::1", "fe80::1%eth0"),
    *("fec0::1", "ff02::1", "5f00::1", "4000::1"),
]

OTHER_SPELLINGS = [
    *("2130706433", "017700000001", "0x7f000001", "127.1", "127.0.1", "0x7f.1", "0177.0.0.1", "①②⑦.0.0.1"),
    *("localhost", "LOCALHOST.", "a.localhost", "db.internal", "nas.local", "intranet"),
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("address", INNER)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    ("link", "why"),
    [
        ("file:///etc/passwd", "is neither http nor https"),
        ("data:text/html,<p>a", "is neither http nor https"),
        ("javascript:alert(1)", "is neither http nor https"),
        ("ftp://example.org/a", "is neither http nor https"),
        ("gopher://example.org/a", "is neither http nor https"),
        ("p1", "is not a full address such as https://example.org/page"),
        ("", "is not a full address such as https://example.org/page"),
        ("//example.org/a", "is not a full address such as https://example.org/page"),
        ("http:///a", "is not a full address such as https://example.org/page"),
        ("https:example.org", "is not a full address such as https://example.org/page"),
        ("http://user@example.org/", "has a name or password in it"),
        ("http://:pass@example.org/", "has a name or password in it"),
        ("http://example.org@127.0.0.1/", "has a name or password in it"),
        ("http://example.org:22/", "has an unusual port"),
        ("https://example.org:80/", "has an unusual port"),
        ("http://example.org:99999/", "is not an address that may be read"),
        ("http://[::1", "is not an address that may be read"),
        ("http://[::1]@", "is not an address that may be read"),
        ("http://example.org\\@127.0.0.1/", "is not an address that may be read"),
        ("http://example.org/\nHost: a", "is not an address that may be read"),
        *((f"http://{host}/", "is not on the public internet") for host in INNER if ":" not in host),
        *((f"http://[{host}]/", "is not on the public internet") for host in INNER if ":" in host and "%" not in host),
        *(
            (f"http://{host}/", "is not on the public internet")
            for host in ("2130706433", "017700000001", "0x7f000001")
        ),
        *(
            (f"http://{host}/", "is not on the public internet")
            for host in ("127.1", "0x7f.1", "0177.0.0.1", "127.0.1")
        ),
        *((f"http://{host}/", "is not on the public internet") for host in ("①②⑦.0.0.1", "localhost", "LOCALHOST.")),
        *((f"http://{host}/", "is not on the public internet") for host in ("a.localhost", "db.internal", "nas.local")),
    ],
)
def test_links_that_may_not_be_read_say_why(link: str, why: str) -> None:
    with pytest.raises(NotAllowed) as refused:
        read_link(link, OPEN)
    assert str(refused.value) == f"{link} {why}"


def test_links_that_may_be_read() -> None:
    for link in (
        "http://example.org",
        "https://example.org/a b?q=ö#f",
        "http://example.org:80/",
        "http://[2606:4700::1]/",
    ):
        url, known = read_link(link, OPEN)
        assert url.scheme in ("http", "https")
        assert not known
    assert str(read_link("https://münchen.de/ü", OPEN)[0]) == "https://xn--mnchen-3ya.de/%C3%BC"


def test_a_configured_host_may_be_read_at_its_port_and_nowhere_else() -> None:
    reach = Reach(base="http://127.0.0.1:8000/s/", hosts=("127.0.0.1:8000", "wiki.corp"))
    for link in ("p1", "/p1", "http://127.0.0.1:8000", "http://wiki.corp/a", "https://WIKI.corp./a"):
        assert read_link(link, reach)[1]
    assert str(read_link("p1", reach)[0]) == "http://127.0.0.1:8000/s/p1"
    assert str(read_link("p2", reach, base="http://wiki.corp/d/p1")[0]) == "http://wiki.corp/d/p2"
    for link in ("http://127.0.0.1:8001/", "http://wiki.corp:8000/", "http://example.org/", "//example.org/"):
        with pytest.raises(NotAllowed, match="is not an address that may be read"):
            read_link(link, reach)
    with pytest.raises(NotAllowed, match="has a name or password in it"):
        read_link("http://u:p@wiki.corp/", reach)


def test_hosts_are_compared_without_case_and_with_brackets() -> None:
    async def go() -> str:
        tool = CrawlPage(CrawlConfig(allow_hosts=("[::1]:9", "WIKI.corp")), HttpConfig(attempts=1))
        found = await tool(ToolCall("crawl_page", "http://[::1]:9/"))
        await tool.close()
        return found

    assert asyncio.run(go()).startswith("no page: ")
    reach = Reach(hosts=("[::1]:9",))
    assert read_link("http://[0:0::1]:9/a", reach)[1]
    with pytest.raises(NotAllowed):
        read_link("http://[::1]/a", reach)


def test_an_address_is_shown_without_what_may_be_secret() -> None:
    assert redact("https://user:pass@example.org/a?key=1#f") == "https://example.org/a"
    assert redact("http://[") == "http://["
    assert redact("http://[::1]@") == "an address that cannot be parsed"
    assert not is_web_address("http://[::1]@")
    assert redact("http://me:s3cret@[") == "an address that cannot be parsed"


# From here on one loopback address stands for the public internet, and another one for the inner network.
OUTSIDE, INSIDE = "127.0.0.2", "127.0.0.1"


@pytest.fixture
def internet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_PRIVATE", (IPv4Network(f"{INSIDE}/32"), IPv4Network("169.254.0.0/16")))


async def abroad(
    names: Mapping[str, Sequence[tuple[str, int]]], *arguments: str, config: CrawlConfig | None = None
) -> list[str]:
    """What is read on the open web, where names lead as given."""
    connector = partial(aiohttp.TCPConnector, resolver=Names(names), use_dns_cache=False)
    tool = CrawlPage(config or CrawlConfig(open_web=True), HttpConfig(pause_s=0.001), connector=connector)
    try:
        return [await tool(ToolCall("crawl_page", argument)) for argument in arguments]
    finally:
        await tool.close()


def port(url: str) -> int:
    return int(url.rpartition(":")[2])


def test_a_public_page_is_read(internet: None) -> None:
    async def go() -> list[str]:
        async with serving(pages_of({"/a": "public"}), OUTSIDE) as url:
            return await abroad({"a.org": [(OUTSIDE, port(url))]}, "http://a.org/a", "http://unknown.org/a")

    assert asyncio.run(go()) == ["public", "no page: no such host"]


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0"])
def test_a_name_that_leads_inside_is_refused_where_it_connects(address: str) -> None:
    asked = []

    async def inner(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(text="secret")

    async def go() -> list[str]:
        async with serving(inner) as url:
            return await abroad({"a.org": [(address, port(url))]}, "http://a.org/latest/meta-data")

    assert asyncio.run(go()) == ["no page: leads to an address that is not public"]
    assert asked == []


def test_a_redirect_to_a_name_that_leads_inside_is_refused(internet: None) -> None:
    async def go() -> list[str]:
        redirect = pages_of({"/a": web.Response(status=302, headers={"Location": "http://inner.org/b"})})
        async with serving(redirect, OUTSIDE) as outside, serving(pages_of({"/b": "secret"})) as inside:
            names = {"a.org": [(OUTSIDE, port(outside))], "inner.org": [(INSIDE, port(inside))]}
            return await abroad(names, "http://a.org/a")

    assert asyncio.run(go()) == ["no page: leads to an address that is not public"]


def test_a_name_that_changes_its_mind_is_judged_each_time_it_connects(internet: None) -> None:
    """DNS rebinding: the first look-up is public, the second is not."""

    async def go() -> list[str]:
        async with raw([response("302 Found", b"", "Location: /b")]) as (inside, heads):
            public = pages_of({"/a": web.Response(status=302, headers={"Location": "/b", "Connection": "close"})})
            async with serving(public, OUTSIDE) as outside:
                names = {"a.org": [(OUTSIDE, port(outside)), (INSIDE, port(inside))]}
                found = await abroad(names, "http://a.org/a")
                assert heads == []
                return found

    assert asyncio.run(go()) == ["no page: leads to an address that is not public"]


def test_a_connection_that_is_kept_stays_where_it_was_judged(internet: None) -> None:
    async def go() -> list[str]:
        public = pages_of({"/a": web.Response(status=302, headers={"Location": "/b"}), "/b": "still public"})
        async with serving(public, OUTSIDE) as outside, serving(pages_of({"/b": "secret"})) as inside:
            return await abroad({"a.org": [(OUTSIDE, port(outside)), (INSIDE, port(inside))]}, "http://a.org/a")

    assert asyncio.run(go()) == ["still public"]


def test_a_host_that_the_configuration_names_may_lead_inside() -> None:
    async def go() -> list[str]:
        async with serving(pages_of({"/a": "intranet"})) as url:
            config = CrawlConfig(open_web=True, allow_hosts=("wiki.corp",))
            names = {"wiki.corp": [(INSIDE, port(url))], "other.corp": [(INSIDE, port(url))]}
            return await abroad(names, "http://wiki.corp/a", "http://other.corp/a", config=config)

    assert asyncio.run(go()) == ["intranet", "no page: leads to an address that is not public"]


@pytest.mark.parametrize("host", ["exa mple.org", "..", ".org", "xn--a.org", "a_b.org"])
def test_names_that_nobody_knows_are_observations(host: str) -> None:
    [found] = asyncio.run(abroad({}, f"http://{host}/"))
    assert found in ("no page: no such host", f"refused: http://{host}/ is not a full address such as {EXAMPLE}")


@pytest.mark.parametrize("host", [f"{'a' * 64}.org", "a..org"])
def test_names_that_no_resolver_takes_are_observations(host: str) -> None:
    async def go() -> str:
        tool = CrawlPage(CrawlConfig(open_web=True), HttpConfig())
        found = await tool(ToolCall("crawl_page", f"http://{host}/"))
        await tool.close()
        return found

    assert asyncio.run(go()) == "no page: no such host"


def test_a_page_over_tls_with_a_bad_certificate_is_an_observation(internet: None) -> None:
    async def go() -> list[str]:
        async with serving(pages_of({"/a": "plain"}), OUTSIDE) as url:
            return await abroad({"a.org": [(OUTSIDE, port(url))]}, "https://a.org/a")

    assert asyncio.run(go()) == ["no page: its certificate or TLS is not valid"]


LINKS = st.one_of(
    st.text(), st.text().map(lambda text: f"http://{text}"), st.from_regex(r"(https?:)?//[^ ]{0,30}(:[0-9]+)?/?.*")
)


@given(LINKS)
def test_whatever_is_written_is_read_or_refused(link: str) -> None:
    for reach in (OPEN, Reach(base="http://127.0.0.1:8000/", hosts=("127.0.0.1:8000",))):
        try:
            url, known = read_link(link, reach)
        except NotAllowed:
            continue
        assert url.scheme in ("http", "https")
        assert url.user is None
        assert known == (url.host == "127.0.0.1")
