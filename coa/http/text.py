"""Decodes bytes of other servers to text that can be read, stored and sent."""

import re
from urllib.parse import quote

import webencodings

from coa.unicode import whole

NAMED_UNSEEN = frozenset({"utf-8", "windows-1252"})
"""Charsets that servers name by default, of pages in the other one too: the bytes decide between the two."""
NO_CHARSETS = frozenset({"replacement", "x-user-defined"})
"""Encodings of the web standard that show no text."""


def is_charset(label: str) -> bool:
    """Whether a label names a charset of pages; names of Python's other codecs (`hex`, `utf-7`) are none."""
    return _encoding_of(label) is not None


def _encoding_of(label: str) -> webencodings.Encoding | None:
    encoding = webencodings.lookup(whole(label))
    return None if encoding is None or encoding.name in NO_CHARSETS else encoding


def decode(body: bytes, charset: str = "") -> str:
    """The bytes as text; never raises. A byte-order mark decides, then the charset, by the labels of the web standard
    (https://encoding.spec.whatwg.org). An unknown one counts as UTF-8, or as Windows-1252 if that is what the bytes
    are."""
    named = _encoding_of(charset)
    unseen = named is None or named.name in NAMED_UNSEEN
    encoding = ("utf-8" if _is_utf8(body) else "windows-1252") if unseen else named
    return webencodings.decode(body, encoding)[0]


def _is_utf8(body: bytes) -> bool:
    """Whether most of the characters that are not ASCII can be read as UTF-8; a text may be cut in one of them."""
    text = body.decode(errors="replace")
    foreign = len(text) - len(text.encode("ascii", "ignore"))
    return text.count("\ufffd") * 2 <= foreign


def quoted(header: str) -> str:
    """An address whose non-UTF-8 bytes, which aiohttp gives as halves of surrogate pairs, are percent-encoded.

    quoted("/caf\\udce9") == "/caf%E9"
    """
    return re.sub("[\udc80-\udcff]+", lambda halves: quote(halves[0].encode("utf-8", "surrogateescape")), header)
