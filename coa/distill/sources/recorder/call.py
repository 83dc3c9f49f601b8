"""A call of a model in progress, and its record."""

import json
from collections.abc import Callable
from typing import Any

from coa.distill.sources.recorder.records import Record, file_name
from coa.distill.sources.recorder.stream import Assembly, Completion, read_completion

UNREACHABLE = "the model endpoint cannot be reached"
SILENT = "the model endpoint said nothing for too long"
BROKEN = "the answer broke off"
GONE = "the client went away"
UNREADABLE = "the answer is no chat completion"


class Call:
    """A call in progress: `answered`, any number of `feed`, `ended`. Without `ended`, the client disconnected."""

    def __init__(self, body: bytes, session: str, task: str, clock: Callable[[], float]) -> None:
        """Raises ValueError for a bad session id."""
        file_name(session)
        self._request = _read_request(body)
        self._session, self._task = session, task or _task(self._request)
        self._clock, self._began = clock, clock()
        self._status, self._failure, self._recorded = 0, GONE, False
        self._stream: Assembly | None = None
        self._body = bytearray()

    def answered(self, status: int, *, streamed: bool) -> None:
        self._status = status
        if streamed:
            self._stream = Assembly()

    def feed(self, piece: bytes) -> None:
        if self._stream is not None:
            self._stream.feed(piece)
        else:
            self._body += piece

    def ended(self, failure: str = "") -> None:
        """Marks the end of the call. failure: an error between the recorder and the model endpoint."""
        self._failure = failure

    def record(self) -> Record | None:
        """The call's record; None if this method was called before."""
        if self._recorded:
            return None
        self._recorded = True
        reply, failure = self._reply()
        return Record(
            session=self._session,
            task=self._task,
            began=round(self._began, 3),
            seconds=round(self._clock() - self._began, 3),
            status=self._status,
            model=reply.model or str(self._request.get("model", "")),
            stream=self._stream is not None,
            messages=self._request.get("messages"),
            tools=self._request.get("tools"),
            reply=reply.message,
            finish=reply.finish,
            usage=reply.usage,
            failure=self._failure or failure,
        )

    def _reply(self) -> tuple[Completion, str]:
        if self._stream is not None:
            return self._stream.completion, UNREADABLE if self._stream.faulty else "" if self._stream.whole else BROKEN
        if self._status != 200:
            return Completion(None), f"status {self._status}"
        try:
            return read_completion(bytes(self._body)), ""
        except ValueError:
            return Completion(None), UNREADABLE


def _read_request(body: bytes) -> dict[str, Any]:
    """The request; empty if it cannot be parsed, since the model endpoint is the one to refuse it."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return asked if isinstance(asked, dict) else {}


def _task(asked: dict[str, Any]) -> str:
    match asked.get("metadata"):
        case {"task": str(task)}:
            return task
    return ""
