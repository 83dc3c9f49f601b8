"""Counts the tokens of streams of the model alone, even if a client leaves early, from the usage that vLLM reports."""

import json
from typing import Protocol

from coa.json_object import Json, JsonView

COUNTED = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
DATA = "data: "


def tokens_of(usage: JsonView) -> int:
    """Tokens read and sampled, from the usage in either protocol's format."""
    return sum(usage.get(name) or 0 for name in COUNTED)


class Meter(Protocol):
    body: Json
    """The request that is sent to vLLM in place of the client's."""

    @property
    def tokens(self) -> int:
        """Tokens read and sampled up to the last event."""
        ...

    def take(self, text: str) -> str:
        """Takes an event of vLLM; returns the part that the client gets, which may be empty."""
        ...


class ChunkMeter:
    """Meter of chat and completions: each event has the usage, which is removed if the client did not ask for it."""

    def __init__(self, body: JsonView) -> None:
        asked = body.get("stream_options") or {}
        self._each = bool(asked.get("continuous_usage_stats"))
        self._last = self._each or bool(asked.get("include_usage"))
        self.body: Json = {**body, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
        self._usage: Json = {}

    @property
    def tokens(self) -> int:
        return tokens_of(self._usage)

    def take(self, text: str) -> str:
        if not text.startswith(DATA + "{"):
            return text
        event = json.loads(text.removeprefix(DATA))
        usage = event.pop("usage", None)
        self._usage = usage or self._usage
        if event.get("choices") == []:  # the last event, which has only the usage
            return text if self._last else ""
        return text if self._each or usage is None else f"{DATA}{json.dumps(event)}\n\n"


class MessageMeter:
    """Meter of messages: the first event has the input tokens, the last the output tokens; until then, each content
    delta counts as one token."""

    def __init__(self, body: JsonView) -> None:
        self.body: Json = dict(body)
        self._usage: Json = {}
        self._pieces = 0

    @property
    def tokens(self) -> int:
        return max(tokens_of(self._usage), (self._usage.get("input_tokens") or 0) + self._pieces)

    def take(self, text: str) -> str:
        for line in text.splitlines():
            if line.startswith(DATA + "{"):
                event = json.loads(line.removeprefix(DATA))
                self._pieces += event.get("type") == "content_block_delta"
                told = event.get("usage") or (event.get("message") or {}).get("usage") or {}
                self._usage |= {name: count for name, count in told.items() if count}
        return text
