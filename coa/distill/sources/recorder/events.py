r"""Reads streams of server-sent events, cut anywhere.

    event: error\n                     the name of the event that follows
    data: {"choices": ...}\n\n         an event; the blank after the colon may be missing; lines end in \r\n, \n or \r
    data: {"choices":\ndata: ...}\n\n  one event on several lines
    : ping\n                           a comment; `data: : ping` counts as one, too

Some servers send no blank line between events, or a bare line of JSON as their last words; both are read.
"""

import codecs
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping

from coa.distill.sources.messages import json_in
from coa.distill.sources.recorder.completion import Completion, text_in
from coa.json_object import Json, JsonView

END = b"[DONE]"
FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
"""How a stream begins."""
SHOWN = 100
"""Maximum characters of an answer that a failure shows."""
UNREADABLE = "the answer is no reply of a model"
_LINE = re.compile(rb"\r\n|\r|\n")


class Stream(ABC):
    """Assembles a streamed reply: `feed` takes its bytes, `close` marks their end; `completion` is the reply so far."""

    def __init__(self) -> None:
        self.fault = ""
        """Content of the stream that is no part of a reply, such as an error; "" for none."""
        self.ended = False
        """Whether the stream was marked as complete."""
        self._pieces: list[bytes] = []
        self._after_cr = False
        self._begun = False
        self._name = ""
        self._data: list[bytes] = []

    @property
    @abstractmethod
    def completion(self) -> Completion: ...

    @abstractmethod
    def take(self, name: str, chunk: Json) -> None:
        """Takes an event. Raises ValueError for the end of a reply that has failed, and TypeError, LookupError or
        AttributeError for an event that is no part of a reply."""

    @property
    def whole(self) -> bool:
        """Whether the reply is complete."""
        return self.ended or bool(self.completion.finish)

    def feed(self, data: bytes) -> None:
        if not data:
            return
        if self._after_cr and data.startswith(b"\n"):
            data = data[1:]  # the second half of a line's end
        self._after_cr = data.endswith(b"\r")
        first, *rest = _LINE.split(data)
        self._pieces.append(first)
        for line in rest:
            self._line(b"".join(self._pieces))
            self._pieces = [line]

    def close(self) -> None:
        self._line(b"".join(self._pieces))
        self._line(b"")

    def _line(self, line: bytes) -> None:
        if not self._begun:
            line, self._begun = line.removeprefix(codecs.BOM_UTF8), True
        field, colon, value = line.partition(b":")
        if not line.strip():
            self._dispatch()
        elif line.startswith(b"{"):
            self._data.append(line)
        elif colon and field == b"data":
            self._data.append(value.strip())
        elif colon and field == b"event":
            self._name = value.strip().decode(errors="replace")

    def _dispatch(self) -> None:
        name, lines = self._name, [line for line in self._data if line and not line.startswith(b":")]
        self._name, self._data = "", []
        if len(lines) > 1 and json_in(joined := b"\n".join(lines)) is not None:
            lines = [joined]
        for line in lines:
            if line == END:
                self.ended = True
            elif not isinstance(chunk := json_in(line), dict):
                self.fault = self.fault or f"{UNREADABLE}: {line[:SHOWN].decode(errors='replace')}"
            elif (error := error_in(chunk, name)) is not None:
                self.fault = self.fault or f"an error in the answer: {error[:SHOWN]}"
            else:
                self._take(name, chunk)

    def _take(self, name: str, chunk: Json) -> None:
        try:
            self.take(name, chunk)
        except ValueError as error:
            self.fault = self.fault or str(error)
        except (TypeError, AttributeError, LookupError):
            self.fault = self.fault or f"{UNREADABLE}: an event with {', '.join(chunk)}"[:SHOWN]


def error_in(chunk: JsonView, name: str = "") -> str | None:
    """The message of an event that is an error; None for another event."""
    error = chunk.get("error")
    if not error and "error" not in (name, chunk.get("type"), chunk.get("object")):
        return None
    found = error if isinstance(error, Mapping) else chunk
    return text_in(found, "message") or (error if isinstance(error, str) else json.dumps(found))


def begins_stream(data: bytes) -> bool:
    """Whether an answer is a stream, whatever its content type."""
    return data.removeprefix(codecs.BOM_UTF8).lstrip().startswith(FIELDS)
