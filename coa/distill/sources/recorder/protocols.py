"""The protocols that the recorder records, by the path of their requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from coa.distill.sources.recorder import anthropic, chat, responses
from coa.distill.sources.recorder.completion import Completion, RecordedRequest
from coa.distill.sources.recorder.events import Stream
from coa.json_object import Json


@dataclass(frozen=True, slots=True)
class Protocol:
    parse_request: Callable[[Json], RecordedRequest]
    """Reads a request."""
    read: Callable[[Json], Completion]
    """Reads a reply that is not streamed; raises LookupError, TypeError, AttributeError or ValueError for another
    JSON value."""
    stream: Callable[[], Stream]


PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "chat/completions": Protocol(chat.parse_request, chat.read, chat.ChatStream),
        "responses": Protocol(responses.parse_request, responses.read, responses.ResponsesStream),
        "messages": Protocol(anthropic.parse_request, anthropic.read, anthropic.MessagesStream),
    }
)
