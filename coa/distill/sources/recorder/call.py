"""A call of a model in progress, and its record."""

import json
from collections.abc import Callable

from coa.distill.sources.messages import json_in
from coa.distill.sources.recorder.completion import Completion, RecordedRequest
from coa.distill.sources.recorder.events import SHOWN, UNREADABLE, Stream, begins_stream, error_in
from coa.distill.sources.recorder.protocols import Protocol
from coa.distill.sources.recorder.records import Record, file_name
from coa.json_object import Json

UNREACHABLE = "the model endpoint cannot be reached"
SILENT = "the model endpoint said nothing for too long"
BROKEN = "the answer broke off"
NO_MESSAGE = "the answer has no message in it"
GONE = "the client went away"
KEPT = "the endpoint keeps {} of the request, so that it can't be recorded"


LONGEST_FIELD = 6
"""Characters by which a stream is told from JSON: `event:`."""


class Call:
    """A call in progress: `answered`, any number of `feed`, `ended`. Without `ended`, the client disconnected."""

    def __init__(self, protocol: Protocol, body: bytes, session: str, task: str, clock: Callable[[], float]) -> None:
        """Raises ValueError for a bad session id."""
        file_name(session)
        asked = json_in(body)
        # The model endpoint is the one to refuse a request that can't be parsed.
        self._protocol, request = protocol, asked if isinstance(asked, dict) else {}
        self._asked, self._model = _as_chat(protocol, request), str(request.get("model", ""))
        named = request["metadata"].get("task") if isinstance(request.get("metadata"), dict) else None
        self._session, self._task = session, task or (named if isinstance(named, str) else "")
        self._clock, self._began = clock, clock()
        self._status, self._failure, self._recorded = 0, GONE, False
        self._streamed: bool | None = None
        """Whether the answer is a stream; None until its first words tell."""
        self._stream: Stream = protocol.stream()
        self._body = bytearray()

    def answered(self, status: int) -> None:
        self._status = status

    def feed(self, piece: bytes) -> None:
        if self._streamed:
            self._stream.feed(piece)
            return
        self._body += piece
        if self._streamed is None and len(self._body.strip()) >= LONGEST_FIELD:
            self._streamed = begins_stream(bytes(self._body))
            if self._streamed:
                self._stream.feed(bytes(self._body))

    def ended(self, failure: str = "") -> None:
        """Marks the end of the call. failure: an error between the recorder and the model endpoint."""
        self._failure = failure

    def record(self) -> Record | None:
        """The call's record; None if this method was called before."""
        if self._recorded:
            return None
        self._recorded = True
        reply, failure = self._reply()
        failure = failure or ("" if reply.message is not None else NO_MESSAGE)
        if self._asked.missing:
            failure = KEPT.format(self._asked.missing)
        return Record(
            session=self._session,
            task=self._task,
            began=round(self._began, 3),
            seconds=round(self._clock() - self._began, 3),
            status=self._status,
            model=reply.model or self._model,
            stream=bool(self._streamed),
            messages=self._asked.messages,
            tools=self._asked.tools,
            reply=reply.message,
            finish=reply.finish,
            usage=reply.usage,
            failure=failure if self._complete else self._failure or failure,
            id=reply.id,
            continues=self._asked.continues,
        )

    @property
    def _complete(self) -> bool:
        """Whether the stream's last words came: many clients close the connection at these, and not at its end."""
        return bool(self._streamed) and self._stream.whole

    def _reply(self) -> tuple[Completion, str]:
        if self._status != 200 and self._status:
            return Completion(None), f"status {self._status}"
        try:
            if self._streamed:
                self._stream.close()
                return self._stream.completion, self._stream.fault or ("" if self._complete else BROKEN)
            reply = json.loads(bytes(self._body))
            if (error := error_in(reply)) is not None:
                return Completion(None), f"an error in the answer: {error[:SHOWN]}"
            return self._protocol.read(reply), ""
        except json.JSONDecodeError:
            pass
        except ValueError as error:
            return Completion(None), str(error)
        except (TypeError, LookupError, AttributeError, RecursionError):
            pass
        return Completion(None), f"{UNREADABLE}: {bytes(self._body[:SHOWN]).decode(errors='replace')}"


def _as_chat(protocol: Protocol, request: Json) -> RecordedRequest:
    """The request in the form of chat completions; without messages if it has another form, since the model endpoint
    is the one to refuse it."""
    try:
        return protocol.parse_request(request)
    except (TypeError, LookupError, AttributeError, ValueError, RecursionError):
        return RecordedRequest(None)
