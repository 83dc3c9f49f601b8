"""What streams of the model alone cost, also when they are left early: vLLM tells it, where it is asked to."""

import json
from collections.abc import Mapping
from typing import Any, Protocol

Json = dict[str, Any]
COUNTED = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
DATA = "data: "


def tokens_of(usage: Mapping[str, Any]) -> int:
    """That were read and sampled, in the words of either protocol."""
    return sum(usage.get(name) or 0 for name in COUNTED)


class Meter(Protocol):
    body: Json
    """The request that is sent in place of the client's."""

    @property
    def tokens(self) -> int:
        """That were read and sampled up to the last event that was taken."""
        ...

    def take(self, text: str) -> str:
        """An event of vLLM's; returns what the client gets of it, which may be nothing."""
        ...


class ChunkMeter:
    """Of chat and completions: each event tells its usage, which is taken out where the client did not ask for it."""

    def __init__(self, body: Mapping[str, Any]) -> None:
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
        if event.get("choices") == []:  # the last one, of the usage alone
            return text if self._last else ""
        return text if self._each or usage is None else f"{DATA}{json.dumps(event)}\n\n"


class MessageMeter:
    """Of messages: the first event tells what was read, the last one what was sampled; each between them a token."""

    def __init__(self, body: Mapping[str, Any]) -> None:
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
