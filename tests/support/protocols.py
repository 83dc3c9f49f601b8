"""Agents on the official clients of the Responses and Messages protocols, and the replies of their models."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiohttp import web

from coa.json_object import Json
from tests.support.imported_runs import PAGES, QUESTION
from tests.support.recordings import streamed

SCRIPT = [("Find the owner.", "", "Vexon Labs"), ("", "Nora Lind owns it.", "Nora Lind"), ("Berg", "", "")]
"""Text, thought and query of each reply."""

SYSTEM = "You are a research assistant."


def items_of(text: str, thought: str, query: str) -> list[Json]:
    items: list[Json] = []
    if thought:
        items.append({"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": thought}]})
    if text:
        part = {"type": "output_text", "text": text, "annotations": []}
        items.append({"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]})
    if query:
        call = {"name": "wiki_search", "arguments": json.dumps({"query": query}), "call_id": f"call {query}"}
        items.append({"type": "function_call", "id": "fc", "status": "completed", **call})
    return items


def response(number: int, items: Sequence[Json], status: str = "completed", **more: Any) -> Json:
    usage = {
        "input_tokens": 7,
        "output_tokens": 3,
        "total_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    fields = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": [], "usage": usage, "error": None}
    head = {"id": f"resp_{number}", "object": "response", "created_at": 1, "model": "m-1", "status": status}
    return {**head, **fields, "output": list(items), **more}


def response_events(number: int, items: Sequence[Json]) -> list[Json]:
    begun = response(number, [], "in_progress", usage=None)
    events: list[Json] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(items):
        empty = {**item, "content": []} if item["type"] == "message" else {**item, "arguments": ""}
        events.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        if item["type"] == "message":
            at = {"item_id": item["id"], "output_index": index, "content_index": 0}
            part = {"type": "output_text", "text": "", "annotations": []}
            events.append({"type": "response.content_part.added", **at, "part": part})
            for character in item["content"][0]["text"]:
                events.append({"type": "response.output_text.delta", **at, "delta": character, "logprobs": []})
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": "response.completed", "response": response(number, items)})
    return [{**event, "sequence_number": n} for n, event in enumerate(events)]


def named(events: Sequence[Json]) -> list[bytes]:
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def answers(whole: Callable[[int], Json], events: Callable[[int], list[Json]]) -> list[Any]:
    """The replies of an endpoint to the calls of one agent."""

    def reply(number: int) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def answer(request: web.Request) -> web.StreamResponse:
            if (await request.json()).get("stream"):
                return await streamed(request, named(events(number)))
            return web.json_response(whole(number))

        return answer

    return [reply(number) for number in range(len(SCRIPT))]


RESPONSES = answers(lambda n: response(n, items_of(*SCRIPT[n])), lambda n: response_events(n, items_of(*SCRIPT[n])))


async def responses_agent(url: str, *, stream: bool, kept_there: bool) -> str:
    """kept_there: whether the endpoint keeps the conversation, and a request names the reply that it continues."""
    openai = pytest.importorskip("openai")
    async with openai.AsyncOpenAI(base_url=f"{url}/session/s/v1", api_key="none", max_retries=0) as client:
        sent: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": f"Question: {QUESTION}"}]}]
        before: Any = {}
        while True:
            asked = {"model": "m", "input": sent, "instructions": SYSTEM, **before}
            asked["tools"] = [{"type": "function", "name": "wiki_search", "parameters": {"type": "object"}}]
            if stream:
                async with client.responses.stream(**asked) as events:
                    async for _ in events:
                        pass
                    reply = await events.get_final_response()
            else:
                reply = await client.responses.create(**asked)
            calls = [item for item in reply.output if item.type == "function_call"]
            if not calls:
                return reply.output_text
            results: list[Any] = [
                {
                    "type": "function_call_output",
                    "call_id": call.call_id,
                    "output": PAGES[json.loads(call.arguments)["query"]],
                }
                for call in calls
            ]
            echo = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in reply.output]
            before = {"previous_response_id": reply.id} if kept_there else {}
            sent = results if kept_there else [*sent, *echo, *results]


def blocks_of(text: str, thought: str, query: str) -> list[Json]:
    blocks: list[Json] = [{"type": "thinking", "thinking": thought, "signature": "s"}] if thought else []
    blocks += [{"type": "text", "text": text, "citations": None}] if text else []
    use = {"type": "tool_use", "id": f"call {query}", "name": "wiki_search", "input": {"query": query}}
    return [*blocks, use] if query else blocks


def anthropic_message(number: int) -> Json:
    text, thought, query = SCRIPT[number]
    usage = {"input_tokens": 4, "cache_read_input_tokens": 3, "cache_creation_input_tokens": None, "output_tokens": 3}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": "m-1", "stop_sequence": None}
    stop = "tool_use" if query else "end_turn"
    return {**head, "content": blocks_of(text, thought, query), "stop_reason": stop, "usage": usage}


def anthropic_events(number: int) -> list[Json]:
    message = anthropic_message(number)
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    events: list[Json] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        name, text, kind = {
            "text": ("text", block.get("text"), "text_delta"),
            "thinking": ("thinking", block.get("thinking"), "thinking_delta"),
            "tool_use": ("partial_json", json.dumps(block.get("input")), "input_json_delta"),
        }[block["type"]]
        empty = {**block, **({"input": {}} if name == "partial_json" else {name: ""})}
        events.append({"type": "content_block_start", "index": index, "content_block": empty})
        for character in text:
            delta = {"type": kind, name: character}
            events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": 3}})
    return [*events, {"type": "message_stop"}]


MESSAGES = answers(anthropic_message, anthropic_events)


async def anthropic_agent(url: str, headers: dict[str, str], *, stream: bool) -> str:
    anthropic = pytest.importorskip("anthropic")
    options = {"base_url": f"{url}/session/s", "api_key": "none", "max_retries": 0, "default_headers": headers}
    async with anthropic.AsyncAnthropic(**options) as client:
        sent: list[Any] = [{"role": "user", "content": f"Question: {QUESTION}"}]
        while True:
            asked: Json = {"model": "m", "max_tokens": 99, "messages": sent}
            asked["system"] = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
            asked["tools"] = [{"name": "wiki_search", "description": "d", "input_schema": {"type": "object"}}]
            if stream:
                async with client.messages.stream(**asked) as events:
                    reply = await events.get_final_message()
            else:
                reply = await client.messages.create(**asked)
            uses = [block for block in reply.content if block.type == "tool_use"]
            if not uses:
                return reply.content[0].text
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": use.id,
                    "content": [{"type": "text", "text": PAGES[use.input["query"]]}],
                }
                for use in uses
            ]
            echo = [block.model_dump(exclude_none=True) for block in reply.content]
            sent += [{"role": "assistant", "content": echo}, {"role": "user", "content": results}]
