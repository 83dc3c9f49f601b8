"""Decodes what other servers send to text that can be read, stored and sent on."""

import codecs
import re
from urllib.parse import quote

NO_CHARSETS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape", "utf-7"})
"""Names of Python codecs that are not charsets of pages; some take hours for a page."""


def decode(body: bytes, charset: str = "") -> str:
    """The bytes as text, never an error. A charset that Python does not know, or that no page uses, counts as UTF-8."""
    try:
        if codecs.lookup(charset or "utf-8").name not in NO_CHARSETS:
            return body.decode(charset or "utf-8", errors="replace")
    except (LookupError, ValueError):  # ValueError: a name with a NUL in it
        pass
    return body.decode(errors="replace")


def well_formed(text: str) -> str:
    """The text with each half of a surrogate pair, which JSON can hold, as a question mark, so that it can be
    encoded."""
    return text.encode(errors="replace").decode()


def quoted(header: str) -> str:
    """An address whose non-UTF-8 bytes, which aiohttp gives as halves of surrogate pairs, are percent-encoded.

    quoted("/caf\\udce9") == "/caf%E9"
    """
    return re.sub("[\udc80-\udcff]+", lambda halves: quote(halves[0].encode("utf-8", "surrogateescape")), header)
