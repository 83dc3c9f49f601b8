"""Unpacks HTTP bodies up to a limit, so that a megabyte of gzip cannot become a gigabyte of memory."""

import zlib

ACCEPTED = "gzip, deflate"
"""The header Accept-Encoding of a client that reads with `Unpacker`."""
_GZIP = 16 + zlib.MAX_WBITS
_BARE = -zlib.MAX_WBITS
_MEMBER = b"\x1f\x8b"
"""First bytes of each member of a gzip file."""


class BadPacking(Exception):
    """A body that cannot be unpacked; its text is the reason, to follow the words "the answer" in a sentence."""


class Unpacker:
    """Unpacks a body that comes in pieces.

    unpacker = Unpacker("gzip", limit=1000)
    while not unpacker.full and (piece := read()):
        unpacker.add(piece)
    text = unpacker.body
    """

    def __init__(self, encoding: str, limit: int) -> None:
        """encoding: the header Content-Encoding; raises BadPacking for one that is not in ACCEPTED."""
        self._encoding = encoding.strip().lower().removeprefix("x-")
        if self._encoding not in ("", "identity", "gzip", "deflate"):
            raise BadPacking("is packed in a way that was not asked for")
        self._limit = limit
        self._stream: zlib._Decompress | None = None
        self._body = bytearray()

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    @property
    def full(self) -> bool:
        return len(self._body) >= self._limit

    @property
    def complete(self) -> bool:
        """Whether the packed stream has reached its end."""
        return self._stream is None or self._stream.eof

    def add(self, piece: bytes) -> None:
        """Unpacks one more piece; raises BadPacking."""
        if self._encoding in ("", "identity"):
            self._body += piece[: self._limit - len(self._body)]
            return
        while piece and not self.full:
            if self._stream is None or self._stream.eof:
                if self._stream is not None and not _MEMBER.startswith(piece[:2]):
                    return  # padding after the end
                self._stream = zlib.decompressobj(self._window(piece))
            try:
                self._body += self._stream.decompress(piece, self._limit - len(self._body))
            except zlib.error as error:
                raise BadPacking("cannot be unpacked") from error
            piece = self._stream.unused_data

    def _window(self, piece: bytes) -> int:
        if self._encoding == "gzip":
            return _GZIP
        # "deflate" means zlib's format, but some servers send a raw deflate stream.
        return zlib.MAX_WBITS if piece[0] & 0x0F == 8 else _BARE
