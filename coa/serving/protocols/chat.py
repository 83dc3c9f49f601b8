"""Writes an episode in the protocols of OpenAI's chat completions and completions: the answer in `content`, the chain
before it in `reasoning`. Neither protocol has fields for tools that the server ran."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from coa.agent.grammar import ANSWER
from coa.json_object import Json, JsonView
from coa.serving.chain import Closed, Opened, Text
from coa.serving.detail import Detail
from coa.serving.events import Broke, Event, Finished, Returned, ServedUsage, fingerprint, total
from coa.types import Status

LIMIT = "coa:limit"
"""The field of a choice with the limit that ended it, since the protocol has only `length` for all limits."""
FINISH = {
    Status.ANSWERED: "stop",
    Status.TRUNCATED: "length",
    Status.OUT_OF_TURNS: "length",
    Status.MALFORMED: "stop",
}


@dataclass(slots=True)
class ChatWriter:
    """Turns the events of one episode, which has one thought and an answer (`coa.serving.detail.AsThought`), into
    chunks of chat completions, and keeps the message."""

    head: JsonView
    """`id`, `created` and `model` of every chunk."""
    detail: Detail = Detail.standard
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    end: Finished | Broke | None = None
    _tag: str | None = None

    def begin(self) -> list[Json]:
        return [self._chunk({"role": "assistant", "content": ""})]

    def take(self, event: Event) -> list[Json]:
        match event:
            case Opened(tag):
                self._tag = tag
                return []
            case Text(text) if self._tag == ANSWER:
                self.content.append(text)
                return [self._chunk({"content": text})]
            case Text(text):
                self.reasoning.append(text)
                return [self._chunk({"reasoning": text})]
            case Closed() | Returned():
                return []
            case Finished():
                self.end = event
                return [{**self._chunk({}, FINISH[event.status], self._extra_fields(event)), **_weights([self])}]
            case Broke():
                self.end = event
                return []

    def _chunk(self, delta: Json, finish: str | None = None, told: Json | None = None) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **(told or {})}
        return {**self.head, "object": "chat.completion.chunk", "choices": [choice]}

    def extra_fields(self) -> Json:
        """Fields of a choice that the protocol does not have, if the request asked for all."""
        return self._extra_fields(_finished(self))

    def _extra_fields(self, end: Finished) -> Json:
        return {LIMIT: end.limit} if end.limit and self.detail is Detail.all else {}

    def usage_chunk(self) -> Json:
        """The last chunk, if `stream_options.include_usage` asks for it."""
        assert isinstance(self.end, Finished)
        told = {**_weights([self]), "choices": [], "usage": usage_of(self.end.usage)}
        return {**self.head, "object": "chat.completion.chunk", **told}


def chat_completion(head: JsonView, writers: list[ChatWriter]) -> Json:
    """The whole answer, with one choice per writer; all writers must have finished."""
    choices = [
        {
            "index": index,
            "message": {
                "role": "assistant",
                "content": "".join(writer.content),
                "reasoning": "".join(writer.reasoning) or None,
                "refusal": None,
            },
            "logprobs": None,
            "finish_reason": FINISH[_finished(writer).status],
            **writer.extra_fields(),
        }
        for index, writer in enumerate(writers)
    ]
    usage = total(_finished(writer).usage for writer in writers)
    return {**head, **_weights(writers), "object": "chat.completion", "choices": choices, "usage": usage_of(usage)}


def completion(head: JsonView, writers: list[ChatWriter]) -> Json:
    """The answer to a request of the older protocol, which supports only text."""
    choices = [
        {
            "index": index,
            "text": "".join(writer.content),
            "logprobs": None,
            "finish_reason": FINISH[_finished(writer).status],
            **writer.extra_fields(),
        }
        for index, writer in enumerate(writers)
    ]
    usage = total(_finished(writer).usage for writer in writers)
    return {**head, **_weights(writers), "object": "text_completion", "choices": choices, "usage": usage_of(usage)}


def as_text(chunk: Json) -> Json | None:
    """Converts a chunk of chat to a chunk of a completion; None if it has no text and no end."""
    choices = [
        {"index": one["index"], "text": one["delta"].get("content") or "", "logprobs": None}
        | {name: value for name, value in one.items() if name in ("finish_reason", LIMIT)}
        for one in chunk["choices"]
    ]
    if any(one["text"] or one["finish_reason"] for one in choices) or not choices:
        return {**chunk, "object": "text_completion", "choices": choices}
    return None


def usage_of(usage: ServedUsage) -> Json:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _weights(writers: Iterable[ChatWriter]) -> Json:
    """The protocol's field for the weights that answered; in a stream, the last chunks have it."""
    versions = {version for writer in writers for version in _finished(writer).versions}
    return {"system_fingerprint": fingerprint(sorted(versions))}


def _finished(writer: ChatWriter) -> Finished:
    assert isinstance(writer.end, Finished)
    return writer.end
