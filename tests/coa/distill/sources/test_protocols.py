"""The recorder between the official clients of other protocols than chat completions and a scripted endpoint."""

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coa.distill.sources import Reason
from coa.distill.sources.recorder.call import Call
from coa.distill.sources.recorder.protocols import PROTOCOLS
from coa.distill.sources.recorder.responses import ResponsesStream
from coa.json_object import Json
from coa.usage import Usage
from tests.support.imported_runs import PAGES, QUESTION, USER, imported, refused, spans
from tests.support.junk import JUNK, spoilt
from tests.support.protocols import (
    MESSAGES,
    RESPONSES,
    SYSTEM,
    anthropic_agent,
    anthropic_events,
    anthropic_message,
    blocks_of,
    items_of,
    named,
    response,
    response_events,
    responses_agent,
)
from tests.support.recordings import CALLED, SAID, completion, events, kept, recording, streamed

pytestmark = pytest.mark.anyio

CHAIN = [
    ("plan", "Find the owner."),
    ("wiki_search", "Vexon Labs"),
    ("observation", PAGES["Vexon Labs"]),
    ("think", "Nora Lind owns it."),
    ("wiki_search", "Nora Lind"),
    ("observation", PAGES["Nora Lind"]),
    ("answer", "Berg"),
]


# The Responses protocol.


@pytest.mark.parametrize("kept_there", [False, True], ids=["sent again", "continued by id"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_agent_on_the_responses_protocol_is_recorded(stream: bool, kept_there: bool, tmp_path: Path) -> None:
    async with recording(tmp_path, *RESPONSES) as (url, model):
        assert await responses_agent(url, stream=stream, kept_there=kept_there) == "Berg"
        assert model.paths == ["/v1/responses"] * 3
    first = kept(tmp_path, "s")[0]
    asked = {"role": "user", "content": f"Question: {QUESTION}"}
    assert first["messages"] == [{"role": "system", "content": SYSTEM}, asked]
    assert first["tools"] == [
        {"type": "function", "function": {"name": "wiki_search", "parameters": {"type": "object"}}}
    ]
    assert first["reply"] == {
        "role": "assistant",
        "content": "Find the owner.",
        "tool_calls": [
            {
                "id": "call Vexon Labs",
                "type": "function",
                "function": {"name": "wiki_search", "arguments": '{"query": "Vexon Labs"}'},
            }
        ],
    }
    told = (first["finish"], first["model"], first["stream"], first["id"], first["failure"])
    assert told == ("tool_calls", "m-1", stream, "resp_0", "")
    [transcript] = imported("recorded", tmp_path)
    assert (spans(transcript), transcript.usage) == (CHAIN, Usage(3, 21, 9))
    assert transcript.models == (("research assistant", "m-1"),)


# Anthropic's Messages protocol.


KEY = "sk-of-the-endpoint-987654"


@pytest.mark.parametrize("older", [False, True], ids=["bearer", "older header of the key"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_an_agent_on_anthropics_protocol_is_recorded(
    stream: bool, older: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    async with recording(tmp_path, *MESSAGES, key_env="UPSTREAM_KEY") as (url, model):
        sent = {"X-Api-Key": "none"} if older else {}
        assert await anthropic_agent(url, sent, stream=stream) == "Berg"
        assert model.paths == ["/v1/messages"] * 3
        heads = {name.lower(): value for name, value in model.heads[0].items()}
        keys = (heads.get("x-api-key"), heads.get("authorization"))
        assert keys == ((KEY, None) if older else (None, f"Bearer {KEY}"))
    first, second, _ = kept(tmp_path, "s")
    asked = {"role": "user", "content": f"Question: {QUESTION}"}
    assert first["messages"] == [{"role": "system", "content": SYSTEM}, asked]
    assert first["tools"] == [
        {"type": "function", "function": {"name": "wiki_search", "description": "d", "parameters": {"type": "object"}}}
    ]
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    assert (first["finish"], first["usage"], first["stream"]) == ("tool_calls", usage, stream)
    assert second["messages"][3] == {
        "role": "tool",
        "tool_call_id": "call Vexon Labs",
        "content": PAGES["Vexon Labs"],
    }
    [transcript] = imported("recorded", tmp_path)
    assert (spans(transcript), transcript.usage) == (CHAIN, Usage(3, 21, 9))


# Whatever comes.

CHAT_ASKED = {"messages": [USER], "tools": [{"type": "function", "function": {"name": "f"}}], "metadata": {"task": "t"}}
RESPONSES_ASKED = {
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "?"}]}, *items_of("a", "b", "c")],
    "tools": [{"type": "function", "name": "f"}],
    "instructions": "i",
}
MESSAGES_ASKED = {
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "assistant", "content": blocks_of("a", "b", "c")},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text"}]}]},
    ],
    "tools": [{"name": "f", "input_schema": {}}],
}
SENT = {
    "chat/completions": (CHAT_ASKED, completion(CALLED), [json.loads(one[6:]) for one in events(CALLED)[:-1]]),
    "responses": (RESPONSES_ASKED, response(0, items_of("a", "b", "c")), response_events(0, items_of("a", "b", "c"))),
    "messages": (MESSAGES_ASKED, anthropic_message(1), anthropic_events(1)),
}


@example("responses", False, False, [1], 5)  # tools that are a number
@settings(deadline=None, max_examples=100)
@given(st.sampled_from(sorted(SENT)), st.booleans(), st.booleans(), st.lists(st.integers(0, 40), max_size=8), JUNK)
def test_whatever_is_sent_a_call_has_a_record(path: str, stream: bool, whole: bool, at: list[int], junk: Any) -> None:
    asked, reply, chunks = SENT[path]
    asked = asked if whole else spoilt(asked, at, junk)
    reply, chunks = (spoilt(reply, at, junk), spoilt(chunks, at, junk)) if whole else (reply, chunks)
    call = Call(PROTOCOLS[path], json.dumps(asked).encode(), "s", "", lambda: 0.0)
    call.answered(200)
    pieces = chunks if isinstance(chunks, list) else [chunks]
    call.feed(
        b"".join(b"data: %s\n\n" % json.dumps(one).encode() for one in pieces) if stream else json.dumps(reply).encode()
    )
    call.ended()
    record = call.record()
    assert record is not None
    json.dumps([record.messages, record.reply, record.usage])


# What is not recorded.


async def send(url: str, body: object = None, method: str = "POST") -> int:
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body or {}) as answered:
        await answered.read()
        return answered.status


async def test_paths_that_are_not_recorded_are_named_once_and_counted_at_the_end(tmp_path: Path) -> None:
    said: list[str] = []

    async def other(request: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async with recording(tmp_path, *[other] * 5, SAID, say=said.append) as (url, _):
        for path in (
            "embeddings",
            "embeddings",
            "completions",
            "responses/resp_1a/cancel",
            "responses/resp_2b/cancel",
        ):
            await send(f"{url}/session/s/v1/{path}")
        await send(f"{url}/session/s/v1/models", method="GET")
        await send(f"{url}/session/s/v1/chat/completions")
        assert await send(f"{url}/session/s/chat/completions") == 404
    recorded = "recorded are /v1/chat/completions, /v1/responses, /v1/messages"
    assert said == [
        f"POST /v1/embeddings is forwarded, and not recorded; {recorded}",
        f"POST /v1/completions is forwarded, and not recorded; {recorded}",
        f"POST /v1/responses/ID/cancel is forwarded, and not recorded; {recorded}",
        "POST /session/s/chat/completions is refused, and not recorded: an agent's base URL ends in /v1, as in "
        "/session/NAME/v1",
        f"recorded 1 call, in {tmp_path}; not recorded: 2 x POST /v1/embeddings, 1 x POST /v1/completions, "
        "2 x POST /v1/responses/ID/cancel, 1 x POST /session/s/chat/completions",
    ]


KEPT = "the endpoint keeps {} of the request, so that it can't be recorded"
DONE = response(0, items_of("Berg", "", ""))


@pytest.mark.parametrize(
    ("path", "asked", "reply", "failure"),
    [
        ("responses", {"conversation": "conv_1", "input": "?"}, DONE, KEPT.format("its conversation")),
        ("responses", {"prompt": {"id": "pmpt_1"}, "input": "?"}, DONE, KEPT.format("its prompt")),
        ("responses", {"input": [{"type": "item_reference", "id": "m"}]}, DONE, KEPT.format("items of its input")),
        (
            "responses",
            {"input": "?", "background": True},
            response(0, [], "queued"),
            "the response is made in the background, and fetched later",
        ),
        (
            "responses",
            {"input": "?"},
            response(0, [], "failed", error={"code": "x", "message": "overloaded"}),
            "an error in the answer: overloaded",
        ),
        ("responses", {"input": "?"}, response(0, []), "the answer has no message in it"),
        ("responses", {"input": "?"}, completion(SAID), 'the answer is no reply of a model: {"id": "1"'),
        ("messages", {"messages": []}, completion(SAID), 'the answer is no reply of a model: {"id": "1"'),
        ("chat/completions", {}, {"error": {"message": "no room"}}, "an error in the answer: no room"),
    ],
)
async def test_a_call_that_cannot_be_recorded_whole_is_a_failure_that_is_told(
    path: str, asked: Json, reply: Json, failure: str, tmp_path: Path
) -> None:
    said: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(reply)

    async with recording(tmp_path, answer, answer, say=said.append) as (url, _):
        for _ in range(2):
            assert await send(f"{url}/session/s/v1/{path}", asked) == 200
    assert [record["failure"].startswith(failure) for record in kept(tmp_path, "s")] == [True, True]
    assert len(said) == 2
    assert said[0].startswith(f"a call of session s is recorded as failed: {failure}")
    assert said[1] == f"recorded 2 calls, 2 of them failed, in {tmp_path}"


BEGUN = response_events(0, items_of("Berg", "", ""))[:6]
FAILED = {"type": "response.failed", "response": response(0, [], "failed", error={"message": "overloaded"})}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}


@pytest.mark.parametrize(
    ("path", "events", "failure"),
    [
        ("responses", BEGUN, "the answer broke off"),
        (
            "responses",
            [*BEGUN, FAILED],
            "the response has failed: overloaded",
        ),
        (
            "responses",
            [*BEGUN, OVERLOADED],
            "an error in the answer: overloaded",
        ),
        ("messages", anthropic_events(2)[:6], "the answer broke off"),
        ("messages", [*anthropic_events(2)[:6], OVERLOADED], "an error in the answer: overloaded"),
    ],
)
async def test_the_part_of_a_stream_that_arrived_is_kept(
    path: str, events: list[Json], failure: str, tmp_path: Path
) -> None:
    async with recording(tmp_path, lambda request: streamed(request, named(events))) as (url, _):
        await send(f"{url}/session/s/v1/{path}", {"input": "?", "messages": [], "stream": True})
    [record] = kept(tmp_path, "s")
    assert (record["failure"], record["reply"]) == (failure, {"role": "assistant", "content": "Ber"})


async def test_a_reply_of_anthropic_without_a_block_is_an_empty_message(tmp_path: Path) -> None:
    events: list[Json] = [
        {"type": "message_start", "message": {"model": "m", "content": []}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ]
    async with recording(tmp_path, lambda request: streamed(request, named(events))) as (url, _):
        await send(f"{url}/session/s/v1/messages", {"messages": [], "stream": True})
    [record] = kept(tmp_path, "s")
    assert (record["failure"], record["reply"]) == ("", {"role": "assistant", "content": None})


async def test_what_a_model_says_after_its_endpoints_tools_is_kept(tmp_path: Path) -> None:
    shell = [{"type": "shell_call", "call_id": "c", "action": {}}, {"type": "shell_call_output", "call_id": "c"}]
    reply = response(0, [*shell, *items_of("Berg", "", "")])

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(reply)

    async with recording(tmp_path, answer) as (url, _):
        await send(f"{url}/session/s/v1/responses", {"input": "?"})
    [record] = kept(tmp_path, "s")
    assert (record["reply"]["content"], len(record["reply"]["tool_calls"])) == ("Berg", 1)


def test_arguments_that_no_whole_item_repeats_are_kept() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}
    stream = ResponsesStream()
    for kind, fields in (
        ("response.output_item.added", {"output_index": 0, "item": call}),
        ("response.function_call_arguments.done", {"output_index": 0, "arguments": '{"q": 1}'}),
        ("response.completed", {"response": response(0, [])}),
    ):
        stream.take(kind, {"type": kind, **fields})
    assert stream.completion.message is not None
    assert stream.completion.message["tool_calls"][0]["function"]["arguments"] == '{"q": 1}'


async def test_a_stream_under_another_content_type_is_a_stream(tmp_path: Path) -> None:
    async def plain(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"".join(named(anthropic_events(2))), content_type="text/plain")

    async with recording(tmp_path, plain) as (url, _):
        await send(f"{url}/session/s/v1/messages", {"messages": []})
    [record] = kept(tmp_path, "s")
    assert (record["stream"], record["failure"], record["reply"]["content"]) == (True, "", "Berg")


async def test_a_conversation_that_began_before_the_recorder_is_refused(tmp_path: Path) -> None:
    async with recording(tmp_path, RESPONSES[2]) as (url, _):
        await send(f"{url}/session/t1/v1/responses", {"input": "Go on.", "previous_response_id": "resp_9"})
    found = refused("recorded", tmp_path)
    assert (found.reason, found.detail) == (Reason.NOT_HEARD, f"{tmp_path}/t1.jsonl, line 1: resp_9")
