"""A response under construction: its fields, its items, and the numbered events that report each change to a client."""

from collections.abc import Callable, Iterable

from coa.json_object import Json, JsonView
from coa.serving.detail import Detail
from coa.serving.events import ServedUsage

RUNNING = ("queued", "in_progress")
"""States of a response that has not ended."""


class Resource:
    """The response of one request. At most one of its items is open."""

    def __init__(self, fields: JsonView, new_id: Callable[[str], str], detail: Detail = Detail.standard) -> None:
        """fields: fields that the request determines. new_id: returns an id with a prefix."""
        self._all = detail is Detail.all
        self.response: Json = {
            **fields,
            "object": "response",
            "status": "queued" if fields.get("background") else "in_progress",
            "completed_at": None,
            "incomplete_details": None,
            "error": None,
            "output": [],
            "usage": None,
        }
        self.sampled_by(())
        self._new_id = new_id
        self._number = 0

    @property
    def answer(self) -> str:
        """The text of the last message; empty if there is none."""
        messages = [item for item in self.response["output"] if item["type"] == "message"]
        return messages[-1]["content"][0]["text"] if messages and messages[-1]["content"] else ""

    def conversation(self) -> list[Json]:
        """The response's part of the conversation: its messages, and the calls of the client's tools."""
        said: list[Json] = []
        for item in self.response["output"]:
            if item["type"] == "function_call":
                call = {"name": item["name"], "arguments": item["arguments"]}
                calls = [{"id": item["call_id"], "type": "function", "function": call}]
                said.append({"role": "assistant", "content": None, "tool_calls": calls})
            elif item["type"] == "message":
                text = item["content"][0]["text"] if item["content"] else ""
                said.append({"role": "assistant", "content": text})
        return said or [{"role": "assistant", "content": ""}]

    @property
    def ended(self) -> bool:
        return self.response["status"] not in RUNNING

    def begin(self) -> list[Json]:
        self.response["status"] = "in_progress"
        return [self._event(f"response.{state}", response=self.snapshot()) for state in ("created", "in_progress")]

    # --- the item that is open ------------------------------------------------------------------------------------

    @property
    def item(self) -> Json:
        return self.response["output"][-1]

    def add(self, kind: str, prefix: str, fields: Json) -> Json:
        """Opens an item."""
        self.response["output"].append({"type": kind, "id": self._new_id(prefix), **fields})
        return self._event("response.output_item.added", output_index=self._index, item=dict(self.item))

    def of_item(self, kind: str, **fields: object) -> Json:
        """An event about the open item."""
        return self._event(kind, item_id=self.item["id"], output_index=self._index, **fields)

    def of_part(self, kind: str, **fields: object) -> Json:
        """An event about the open item's only part."""
        return self.of_item(kind, content_index=0, **fields)

    def item_done(self) -> Json:
        return self._event("response.output_item.done", output_index=self._index, item=dict(self.item))

    # --- messages, of the agent and of the model alone ------------------------------------------------------------

    def add_message(self) -> list[Json]:
        fields = {"status": "in_progress", "role": "assistant", "content": []}
        added = self.add("message", "msg", fields)
        return [added, self.of_part("response.content_part.added", part=output_text(""))]

    def text(self, delta: str) -> Json:
        return self.of_part("response.output_text.delta", delta=delta, logprobs=[])

    def close_message(self, text: str, status: str) -> list[Json]:
        part = output_text(text)
        self.item.update(status=status, content=[part])
        return [
            self.of_part("response.output_text.done", text=text, logprobs=[]),
            self.of_part("response.content_part.done", part=part),
            self.item_done(),
        ]

    # --- reasoning, as a summary: OpenAI and Open Responses name events of other reasoning differently ------------

    def add_reasoning(self) -> list[Json]:
        added = self.add("reasoning", "rs", {"summary": []})
        return [added, self._of_summary("part.added", part=summary_text(""))]

    def reason(self, delta: str) -> Json:
        return self._of_summary("text.delta", delta=delta)

    def close_reasoning(self, text: str) -> list[Json]:
        part = summary_text(text)
        self.item["summary"] = [part]
        return [self._of_summary("text.done", text=text), self._of_summary("part.done", part=part), self.item_done()]

    def _of_summary(self, kind: str, **fields: object) -> Json:
        return self.of_item(f"response.reasoning_summary_{kind}", summary_index=0, **fields)

    # --- fields that the published schema does not have -----------------------------------------------------------

    def note(self, **fields: object) -> None:
        """Fields of the open item, `coa:NAME`, if the request asked for all."""
        if self._all:
            self.item.update({f"coa:{name}": value for name, value in fields.items()})

    def sampled_by(self, versions: Iterable[int]) -> None:
        """Records the weight versions that sampled the response, if the request asked for all."""
        if self._all:
            self.response["coa:versions"] = list(versions)

    # --- the end --------------------------------------------------------------------------------------------------

    def complete(self, usage: ServedUsage, now: int) -> Json:
        self.response |= {"status": "completed", "completed_at": now, "usage": usage_of(usage)}
        return self._event("response.completed", response=self.snapshot())

    def leave_incomplete(self, usage: ServedUsage, reason: str) -> Json:
        """OpenAI's schema has one reason for all limits."""
        reason = reason if self._all else "max_output_tokens"
        self.response |= {"status": "incomplete", "incomplete_details": {"reason": reason}, "usage": usage_of(usage)}
        return self._event("response.incomplete", response=self.snapshot())

    def fail(self, code: str, message: str) -> Json:
        """OpenAI's schema has one code for whatever fails here."""
        code = code if self._all else "server_error"
        self.response |= {"status": "failed", "error": {"code": code, "message": message}}
        return self._event("response.failed", response=self.snapshot())

    @property
    def _index(self) -> int:
        return len(self.response["output"]) - 1

    def _event(self, kind: str, **fields: object) -> Json:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def snapshot(self) -> Json:
        """A snapshot of the response: fields of items are replaced, never changed in place."""
        return {**self.response, "output": [dict(item) for item in self.response["output"]]}


def output_text(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def summary_text(text: str) -> Json:
    return {"type": "summary_text", "text": text}


def usage_of(usage: ServedUsage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }
