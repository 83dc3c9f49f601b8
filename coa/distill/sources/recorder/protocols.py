"""The protocols that the recorder records, by the path of their requests."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from coa.distill.sources.recorder import anthropic, chat, responses
from coa.distill.sources.recorder.completion import Asked, Completion, Json
from coa.distill.sources.recorder.events import Stream


@dataclass(frozen=True, slots=True)
class Protocol:
    asked: Callable[[Json], Asked]
    """Reads a request."""
    read: Callable[[Json], Completion]
    """Reads a reply that is not streamed; raises LookupError, TypeError, AttributeError or ValueError for another
    JSON value."""
    stream: Callable[[], Stream]


PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "chat/completions": Protocol(chat.asked, chat.read, chat.ChatStream),
        "responses": Protocol(responses.asked, responses.read, responses.ResponsesStream),
        "messages": Protocol(anthropic.asked, anthropic.read, anthropic.MessagesStream),
    }
)
