"""The model alone, scripted: it says what vLLM's handler of chat completions would, as a stream."""

import json
from collections.abc import AsyncGenerator
from typing import Any

from coa.json_object import Json
from coa.serving.faults import invalid

USAGE = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


class ScriptedPlain:
    """Calls the first tool that it is given, and else says "It is.". It can't see, as most models."""

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.weights: list[str] = []

    def name_weights(self, fingerprint: str) -> None:
        self.weights.append(fingerprint)

    async def chat(self, body: Json, salt: str) -> Json:
        self.asked.append(body)
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": "It is."}}], "usage": USAGE}

    async def stream_chat(self, body: Json, salt: str) -> AsyncGenerator[str]:
        self.asked.append(body)
        if any(part.get("type") == "image_url" for part in _parts(body)):
            raise invalid("the model is not a multimodal model")
        return self._events(body)

    async def _events(self, body: Json) -> AsyncGenerator[str]:
        if body.get("tools"):
            function = {"name": body["tools"][0]["function"]["name"], "arguments": ""}
            call = {"index": 0, "id": "call_1", "type": "function"}
            yield _chunk(tool_calls=[{**call, "function": function}])
            for piece in ('{"location"', ': "Oslo"}'):
                yield _chunk(tool_calls=[{"index": 0, "function": {"arguments": piece}}])
            yield _chunk("tool_calls")
        else:
            for piece in ("It ", "is."):
                yield _chunk(content=piece)
            yield _chunk("stop")
        yield f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\n"
        yield "data: [DONE]\n\n"


def _parts(body: Json) -> list[Json]:
    contents = [message["content"] for message in body["messages"]]
    return [part for content in contents if isinstance(content, list) for part in content]


def _chunk(finish: str | None = None, **delta: Any) -> str:
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return f"data: {json.dumps(chunk)}\n\n"
