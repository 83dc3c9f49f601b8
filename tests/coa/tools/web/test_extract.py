"""The text of pages: charsets, types, feeds, main texts, and the child processes that find them."""

import asyncio

import pytest

from coa.tools.web.extract import Body, Extractor, is_text, media_type, page_text, visible_words

NONE = "application/octet-stream"
"""As what the client names a body without a type."""
ARTICLE = b"""<html><head><title>Arden</title><style>p{}</style></head>
<body><nav><a href="/">Home</a><a href="/x">Menu</a></nav><article><h1>Arden</h1>
<p>Arden is a town on the river Lune. Its mayor is Berg, who was elected in 1999 by the people.</p>
<script>track()</script><p>The town has a market and a school, and many visitors come to see its old bridge.</p>
</article><footer>Copyright nobody</footer></body></html>"""


def test_the_main_text_of_a_page_is_found() -> None:
    text = page_text(Body(ARTICLE, "text/html", ""))
    assert "Its mayor is Berg" in text
    assert "its old bridge" in text
    assert not [word for word in ("Menu", "Copyright", "track", "<p>") if word in text]


def test_a_page_without_an_article_gives_its_visible_words() -> None:
    assert page_text(Body(b"<textarea>x &amp; y</textarea>", "text/html", "")) == "x & y"
    markup = "<html><style>p{}</style><body><h1>A &amp; B</h1>\n<p>c<script>x()</script> d</p></body></html>"
    assert visible_words(markup) == "A & B c d"


@pytest.mark.parametrize("section", ["<![\x00", "<![ x>", "<![unknown[ a > b ]]>", "<![", "<![if x]>"])
def test_a_marked_section_that_is_none_is_no_text(section: str) -> None:
    assert visible_words(f"a {section}").split()[0] == "a"


NO_CHARSETS = ("hex", "rot13", "utf-7", "idna", "base64", "zip", "bz2", "uu", "quopri", "undefined", "mbcs")
"""Names of Python's codecs that no page can mean."""
KOI8 = '<?xml version="1.0" encoding="koi8-r"?><a>да</a>'
RSS = """<?xml version="1.0" encoding="iso-8859-1"?>
<!-- a feed --><rss version="2.0"><channel><title>News</title><link>http://a.example/</link>
<item><title>Café &amp; bar</title><link>http://a.example/1</link><pubDate>Mon, 6 May 2024</pubDate>
<description>&lt;p&gt;Two &lt;b&gt;new&lt;/b&gt; rooms.&lt;/p&gt;</description></item>
<item><title><![CDATA[Closed]]></title><guid>2</guid></item></channel></rss>"""
ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><title>News</title><entry><title>Open</title>
<link rel="self" href="http://a.example/self"/><link href="http://a.example/1"/><updated>2024-05-06</updated>
<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><p>Two</p><p>rooms.</p></div></content></entry></feed>"""
ENTITY = '<!DOCTYPE rss SYSTEM "http://127.0.0.1:9/a.dtd"><rss><item><title>&a;b</title></item></rss>'


@pytest.mark.parametrize("content_type", ["application/rss+xml", "application/xml", "text/xml", "text/html"])
@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (
            RSS.encode("latin-1"),
            "Café & bar (Mon, 6 May 2024) http://a.example/1\nTwo new rooms.\n\nClosed",
        ),
        (ATOM.encode(), "Open (2024-05-06) http://a.example/1\nTwo rooms."),
        (RSS.encode("latin-1")[:192], "Café & bar http://a.examp"),
        (ENTITY.encode(), "&a; b"),
    ],
)
def test_of_a_feed_its_entries_are_shown(content_type: str, markup: bytes, text: str) -> None:
    assert page_text(Body(markup, content_type, "")) == text


@pytest.mark.parametrize(
    ("data", "declared", "found"),
    [
        (b"<!DOCTYPE html><p>a", NONE, "text/html"),
        (b"\n <HTML>", NONE, "text/html"),
        (b"<?xml version='1.0'?><a/>", NONE, "text/xml"),
        (b"<rss><channel/></rss>", "binary/octet-stream", "text/xml"),
        (b'{"a": 1}', NONE, "text/plain"),
        (b"", NONE, "text/plain"),
        ("\ufeffa".encode("utf-16-le"), NONE, "text/plain"),
        (b"\x89PNG\r\n\x1a\n", NONE, NONE),
        (b"PK\x03\x04", "application/zip", "application/zip"),
        (b"<html>", "text/plain", "text/plain"),
        (b"%PDF-1.7 \xff", NONE, "application/pdf"),
        (b"%PDF-1.7 \xff", "text/html", "application/pdf"),
    ],
)
def test_the_first_bytes_of_a_body_say_what_it_is_where_its_server_does_not(
    data: bytes, declared: str, found: str
) -> None:
    assert media_type(declared, data) == found


@pytest.mark.parametrize(
    ("content_type", "whether"),
    [
        *((f"text/{name}", True) for name in ("html", "plain", "x-rst", "tab-separated-values", "calendar")),
        *((f"application/{name}", True) for name in ("xhtml+xml", "atom+xml", "feed+json", "json", "xml", "x-yaml")),
        *((f"application/{name}", False) for name in ("pdf", "zip", "octet-stream", "msword")),
        *((name, False) for name in ("image/svg+xml", "video/mp4", "", "html")),
    ],
)
def test_pages_of_text_are_told_by_their_type(content_type: str, whether: bool) -> None:
    assert is_text(content_type) is whether


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (Body(b" plain \xff\x00 text\r\n", "text/plain", ""), "plain ÿ  text"),
        (Body("café".encode("latin-1"), "text/plain", "latin-1"), "café"),
        (Body("café".encode(), "text/plain", "no-such-charset"), "café"),
        (Body(b"a", "text/plain", "\x00"), "a"),
        *((Body(b"a-" * 100_000, "text/plain", name), "a-" * 100_000) for name in ("punycode", "IDNA", "U7")),
        (Body(b"\\ud800", "text/plain", "unicode_escape"), "\\ud800"),
        (Body("<p>café".encode("latin-1"), "text/html", "iso-8859-1"), "café"),
        (Body("<meta charset='latin-1'><p>café".encode("latin-1"), "text/html", ""), "café"),
        (Body(b"<p>a\x00b\x07c", "text/html", ""), "a b c"),
        (Body(b"", "text/html", ""), ""),
        *((Body("<p>café".encode(), "text/html", name), "café") for name in (*NO_CHARSETS, "\udcff")),
        *((Body(f"<meta charset={name}><p>café".encode(), "text/html", ""), "café") for name in NO_CHARSETS),
        (Body("<meta charset=gb2312><p>北京镕".encode("gbk"), "text/html", "hex"), "北京镕"),
        (Body("<meta charset=utf-16><p>café".encode(), "text/html", ""), "café"),
        (Body("ｶ①".encode("cp932"), "text/plain", "x-sjis"), "ｶ①"),
        (Body(b"\x93so\x94", "text/plain", "iso-8859-1"), "“so”"),
        (Body("café".encode("latin-1"), "text/plain", ""), "café"),
        (Body("café".encode("latin-1"), "text/plain", "utf-8"), "café"),
        (Body("café".encode(), "text/plain", "iso-8859-1"), "café"),
        (Body("\ufeffcafé".encode("utf-16-be"), "text/plain", "utf-8"), "café"),
        (Body("\ufeffcafé".encode(), "text/plain", "latin-1"), "café"),
        (Body("北京".encode()[:-1], "text/plain", ""), "北\ufffd"),
        (Body(KOI8.encode("koi8-r"), "application/xml", ""), KOI8),
        (Body(b'{"a": 1}', "application/json", ""), '{"a": 1}'),
    ],
)
def test_bytes_of_every_kind_become_text(body: Body, text: str) -> None:
    assert page_text(body) == text


def soon() -> float:
    return asyncio.get_running_loop().time() + 300.0


def test_a_page_that_keeps_the_parser_busy_is_given_up_and_the_next_one_is_read() -> None:
    async def go() -> list[str | None]:
        extractor, found = Extractor(children=1, limit_s=60.0), []
        for body, limit_s in ((b"<p>first", 60.0), (b"<!--" * 300_000, 1.0), (b"<p>second", 60.0)):
            extractor._limit_s = limit_s
            found.append(await extractor.text(Body(body, "text/html", ""), soon()))
        await extractor.close()
        return found

    assert asyncio.run(go()) == ["first", None, "second"]


def test_a_reading_process_that_died_is_replaced() -> None:
    async def go() -> tuple[str | None, str | None]:
        extractor = Extractor(children=1, limit_s=60.0)
        first = await extractor.text(Body(b"<p>a", "text/html", ""), soon())
        extractor._idle[0].end()
        second = await extractor.text(Body(b"<p>b", "text/html", ""), soon())
        await extractor.close()
        return first, second

    assert asyncio.run(go()) == ("a", "b")


def test_pages_are_read_without_the_environment_of_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "s3cret")

    async def go() -> bytes:
        extractor = Extractor(children=1, limit_s=60.0)
        await extractor.text(Body(b"<p>a", "text/html", ""), soon())
        environment = open(f"/proc/{extractor._idle[0].pid}/environ", "rb").read()  # noqa: ASYNC230, SIM115
        await extractor.close()
        return environment

    assert b"s3cret" not in asyncio.run(go())
