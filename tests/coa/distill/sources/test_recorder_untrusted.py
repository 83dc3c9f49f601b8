"""The recorder, between clients and endpoints that send what nobody expects: nothing gets by unrecorded, no stream
breaks, no key is kept."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from coa.distill.sources.recorder import RecorderConfig, serving
from coa.distill.sources.recorder.chat import ChatStream
from coa.distill.sources.recorder.hiding import hidden, keys_of
from coa.distill.sources.recorder.records import TOO_DEEP
from tests.support import servers
from tests.support.recordings import ASKED, KEY, SAID, kept, post, recording, streamed

pytestmark = pytest.mark.anyio


async def request(url: str, path: str, body: bytes, headers: str = "") -> bytes:
    """The answer to a request whose path and headers no client spells otherwise."""
    where = URL(url)
    reader, writer = await asyncio.open_connection(where.host, where.port)
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{headers}\r\n"
    writer.write(head.encode("latin-1") + body)
    answer = await reader.read()
    writer.close()
    return answer


SPELLINGS = [
    *("./chat/completions", "chat/./completions", "chat//completions", "chat/completions/", "%2E/chat/completions"),
    *("chat%2Fcompletions", "chat/%252e/completions", "%63hat/completions", "x/%2E./chat/completions"),
]


@pytest.mark.parametrize("path", SPELLINGS)
def test_no_spelling_of_the_path_gets_by_unrecorded(path: str, tmp_path: Path) -> None:
    async def main() -> list[str]:
        async with recording(tmp_path, SAID) as (url, model):
            await request(url, f"/session/a/v1/{path}", json.dumps(ASKED).encode())
            return model.paths

    reached = asyncio.run(main())
    assert reached in ([], ["/v1/chat/completions"])
    assert len(kept(tmp_path, "a") if reached else []) == len(reached)


def test_tool_calls_numbered_by_words_numbers_and_not_at_all_are_one_reply() -> None:
    assembly = ChatStream()
    for index, name in ((0, "f"), ("1", "g"), ("1", ""), ([], "h"), (None, "i"), (4.0, "j"), ({}, "k")):
        call = {"index": index, "id": name or "g", "function": {"name": name, "arguments": "{"}}
        assembly.feed(f"data: {json.dumps({'choices': [{'delta': {'tool_calls': [call]}}]})}\n\n".encode())
    message = assembly.completion.message
    assert message is not None
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["f", "g", "h", "i", "j", "k"]
    assert message["tool_calls"][1]["function"]["arguments"] == "{{"


DEPTHS = (500, 900, *range(930, 1000, 4), 5000)


def deep(box: Any) -> int:
    depth = 0
    while box:
        box, depth = box[0], depth + 1
    return depth


async def test_messages_nested_deep_are_kept_and_break_no_stream(tmp_path: Path) -> None:
    async def model(request: web.Request) -> web.StreamResponse:
        return await streamed(request, [b'data: {"choices": [{"delta": {"content": "ok"}}]}\n\n', b"data: [DONE]\n\n"])

    async with (
        servers.serving(model) as upstream,
        serving(RecorderConfig(upstream=f"{upstream}/v1", folder=tmp_path)) as url,
    ):
        for depth in DEPTHS:
            content = "[" * (depth + 1) + "]" * (depth + 1)
            body = f'{{"model": "m", "messages": [{{"role": "user", "content": {content}}}]}}'
            answer = await request(url, "/session/a/v1/chat/completions", body.encode())
            assert b"[DONE]" in answer
            assert answer.endswith(b"0\r\n\r\n")
    lines = kept(tmp_path, "a")
    assert len(lines) == len(DEPTHS)
    for depth, line in zip(DEPTHS, lines, strict=True):
        if line["messages"] is None:
            assert depth > 900
            assert line["failure"] in ("", TOO_DEEP)  # "" where the request could not even be read
        else:
            assert deep(line["messages"][0]["content"]) == depth
            assert line["reply"]["content"] == "ok"
    assert lines[-1]["messages"] is None


HEADERS = [
    {"Authorization": f"bearer {KEY}"}, {"Authorization": KEY}, {"authorization": f"Basic   {KEY}"},
    {"X-Goog-Api-Key": KEY}, {"X-Auth-Token": KEY}, {"x-api-key": KEY}, {"Cookie": f'a=1; session="{KEY}"; b=2'},
    {"X-Amz-Security-Token": KEY},
]  # fmt: skip


@pytest.mark.parametrize("headers", HEADERS, ids=lambda one: next(iter(one)))
def test_keys_are_found_in_headers(headers: dict[str, str]) -> None:
    assert KEY in keys_of(headers, {})
    assert not {"bearer", "Basic", "session"} & keys_of(headers, {})


async def test_a_key_in_a_header_or_in_the_address_is_not_kept(tmp_path: Path) -> None:
    asked = {**ASKED, "messages": [{"role": "user", "content": f"my key is {KEY}, my cookie crumb-123456"}]}
    async with recording(tmp_path, SAID, SAID) as (url, model), aiohttp.ClientSession() as session:
        address = f"{url}/session/a/v1/chat/completions"
        cookie = {"Cookie": "session=crumb-123456"}
        async with session.post(f"{address}?key={KEY}&page=my key is", json=asked, headers=cookie) as response:
            assert response.status == 200
        assert model.paths == [f"/v1/chat/completions?key={KEY}&page=my+key+is"]
        await post(f"{url}/session/a/v1", asked, {"authorization": f"bearer {KEY}", **cookie})
    assert [one["messages"][0]["content"] for one in kept(tmp_path, "a")] == ["my key is ***, my cookie ***"] * 2


def test_a_key_is_hidden_in_texts_and_changes_no_name_and_no_escape() -> None:
    value = {"messages": [{"content": "\nsecret12 is messages", "nsecret12": ["messages", 1]}], "usage": None}
    assert hidden(value, {"nsecret12", "messages"}) == {
        "messages": [{"content": "\nsecret12 is ***", "nsecret12": ["***", 1]}],
        "usage": None,
    }
    assert value["messages"] == [{"content": "\nsecret12 is messages", "nsecret12": ["messages", 1]}]
    arguments = json.dumps({"a": "\nsecret12", "b": 'it"s-secret'})
    assert hidden({"arguments": arguments}, {"nsecret12"}) == {"arguments": arguments}
    assert json.loads(hidden({"arguments": arguments}, {'it"s-secret'})["arguments"]) == {"a": "\nsecret12", "b": "***"}
    assert hidden({"arguments": "{ nsecret12"}, {"nsecret12"}) == {"arguments": "{ ***"}


async def test_sessions_that_differ_in_bytes_that_are_no_utf8_have_files_of_their_own(tmp_path: Path) -> None:
    async with recording(tmp_path, SAID, SAID, SAID) as (url, _):
        for byte in "\xff\xfe":
            headers = f"X-Session-Id: run{byte}\r\nX-Task-Id: t{byte}\r\n"
            answer = await request(url, "/v1/chat/completions", json.dumps(ASKED).encode(), headers)
            assert answer.startswith(b"HTTP/1.1 200")
    assert [kept(tmp_path, session)[0]["task"] for session in ("run%FF", "run%FE")] == ["t%FF", "t%FE"]
    assert len(list(tmp_path.iterdir())) == 2


def test_a_line_without_end_costs_linear_time() -> None:
    assembly, start = ChatStream(), time.thread_time()
    for _ in range(4096):
        assembly.feed(b"x" * 8192)
    # 32 MiB: copied as a whole with each piece, that would be 64 GiB.
    assert time.thread_time() - start < 20


def test_a_line_in_many_pieces_is_read_as_one() -> None:
    line = b'data: {"model": "m", "choices": [{"delta": {"content": "yes"}}]}\n'
    assembly = ChatStream()
    for byte in line + b"data: [DONE]\n":
        assembly.feed(bytes([byte]))
    assembly.close()
    assert assembly.completion.message == {"role": "assistant", "content": "yes"}
    assert assembly.whole
