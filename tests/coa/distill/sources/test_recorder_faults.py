"""The recorder where something breaks off, and how it reads streams."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.distill.sources.recorder import RecorderConfig, serving
from coa.distill.sources.recorder.stream import Assembly, read_completion
from coa.errors import UserError
from tests.support import servers
from tests.support.recordings import (
    ASKED,
    SAID,
    completion,
    events,
    kept,
    post,
    recording,
    streamed,
)

# What goes wrong.


def test_an_error_of_the_endpoint_is_passed_on_and_kept_as_a_failure(tmp_path: Path) -> None:
    async def busy(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "3"})

    async def main() -> None:
        async with (
            recording(tmp_path, busy) as (url, _),
            aiohttp.ClientSession() as session,
            session.post(f"{url}/session/s/v1/chat/completions", json=ASKED) as response,
        ):
            assert (response.status, response.headers["Retry-After"]) == (429, "3")
            assert await response.json() == {"error": {"message": "busy"}}

    asyncio.run(main())
    [record] = kept(tmp_path, "s")
    assert (record["status"], record["failure"], record["reply"]) == (429, "status 429", None)


def test_a_stream_that_breaks_off_breaks_off_for_the_client_too(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = await streamed(request, events(SAID)[:3])
        assert request.transport is not None
        request.transport.close()
        return response

    async def main() -> None:
        async with recording(tmp_path, cut) as (url, _), aiohttp.ClientSession() as session:
            body = {**ASKED, "stream": True}
            async with session.post(f"{url}/session/s/v1/chat/completions", json=body) as response:
                assert response.status == 200
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()

    asyncio.run(main())
    [record] = kept(tmp_path, "s")
    assert record["failure"] == "the answer broke off"
    assert record["reply"]["content"] == "Bérg, "


def test_a_stream_that_ends_too_early_is_kept_as_broken(tmp_path: Path) -> None:
    async def main() -> None:
        async with recording(tmp_path, lambda request: streamed(request, events(SAID)[:3])) as (url, _):
            assert (await post(f"{url}/session/s/v1", {**ASKED, "stream": True}))[1] == b"".join(events(SAID)[:3])

    asyncio.run(main())
    assert kept(tmp_path, "s")[0]["failure"] == "the answer broke off"


def test_a_slow_endpoint_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        async def silent(request: web.Request) -> web.StreamResponse:
            await asyncio.sleep(60)
            raise AssertionError

        async with servers.serving(silent) as upstream:
            config = RecorderConfig(upstream=f"{upstream}/v1", folder=tmp_path, silence_s=0.05)
            async with serving(config) as url:
                assert (await post(f"{url}/session/s/v1"))[0] == 504

    asyncio.run(main())
    [record] = kept(tmp_path, "s")
    assert (record["status"], record["failure"]) == (0, "the model endpoint said nothing for too long")


def test_what_is_no_chat_completion_is_passed_on_and_kept_as_a_failure(tmp_path: Path) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    async def main() -> None:
        async with recording(tmp_path, page) as (url, _):
            assert await post(f"{url}/session/s/v1") == (200, b"<html>")

    asyncio.run(main())
    assert kept(tmp_path, "s")[0]["failure"] == "the answer is no chat completion"


def test_a_client_that_goes_away_ends_the_call_of_the_model(tmp_path: Path) -> None:
    async def main() -> None:
        gone = asyncio.Event()

        async def endless(request: web.Request) -> web.StreamResponse:
            response = await streamed(request, events(SAID)[:2])
            try:
                while True:
                    await response.write(b": still here\n\n")
                    await asyncio.sleep(0.01)
            except ConnectionError:
                gone.set()
                raise

        async with recording(tmp_path, endless) as (url, _), aiohttp.ClientSession() as session:
            response = await session.post(f"{url}/session/s/v1/chat/completions", json={**ASKED, "stream": True})
            await response.content.readany()
            response.close()
            await asyncio.wait_for(gone.wait(), 10)

    asyncio.run(main())
    [record] = kept(tmp_path, "s")
    assert record["failure"] == "the client went away"


def test_a_client_that_goes_away_before_a_word_was_said_ends_the_call_too(tmp_path: Path) -> None:
    async def main() -> None:
        asked, gone = asyncio.Event(), asyncio.Event()

        async def silent(request: web.Request) -> web.StreamResponse:
            asked.set()
            while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            gone.set()
            raise ConnectionError

        async with recording(tmp_path, silent) as (url, _):
            client = asyncio.create_task(post(f"{url}/session/s/v1"))
            await asyncio.wait_for(asked.wait(), 10)
            client.cancel()
            await asyncio.wait_for(gone.wait(), 10)

    asyncio.run(main())
    [record] = kept(tmp_path, "s")
    assert (record["status"], record["failure"]) == (0, "the client went away")


@pytest.mark.parametrize(
    ("upstream", "message"), [("ftp://there/v1", "--upstream is ftp://there/v1"), ("http://", "--upstream is")]
)
def test_an_upstream_that_cannot_be_is_a_persons_mistake(upstream: str, message: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(RecorderConfig(upstream=upstream, folder=tmp_path)):
            raise AssertionError

    with pytest.raises(UserError, match=message):
        asyncio.run(main())


def test_a_port_that_is_taken_is_a_persons_mistake(tmp_path: Path) -> None:
    async def main() -> None:
        async with recording(tmp_path) as (url, _):
            port = int(url.rsplit(":", 1)[1])
            async with serving(RecorderConfig(upstream=url, folder=tmp_path), port=port):
                raise AssertionError

    with pytest.raises(UserError, match=r"can't listen at 127\.0\.0\.1"):
        asyncio.run(main())


def test_a_port_that_does_not_exist_is_a_users_mistake(tmp_path: Path) -> None:
    async def main() -> None:
        async with serving(RecorderConfig(upstream="http://127.0.0.1:1/v1", folder=tmp_path), port=99999):
            raise AssertionError

    with pytest.raises(UserError, match=r"can't listen at 127\.0\.0\.1:99999: .*port must be 0-65535"):
        asyncio.run(main())


# Streams.

NAMES = st.sampled_from(["wiki_search", "code"])
CALLS = st.lists(
    st.builds(
        lambda n, name, arguments: {
            "id": f"c{n}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        },
        st.integers(0, 999),
        NAMES,
        st.text(max_size=30),
    ),
    max_size=3,
)
MESSAGES = st.builds(
    lambda content, calls: (
        {"role": "assistant", "content": content or None} | ({"tool_calls": calls} if calls else {})
    ),
    st.text(max_size=60),
    CALLS,
)


@settings(deadline=None)
@given(MESSAGES, st.integers(1, 9), st.lists(st.integers(0, 4000), max_size=12))
def test_a_stream_cut_anywhere_is_the_whole_reply(message: dict[str, Any], width: int, cuts: list[int]) -> None:
    data = b"".join(events(message, width))
    assembly, at = Assembly(), 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        assembly.feed(data[at:cut])
        at = cut
    assert assembly.whole
    assert not assembly.faulty
    assert assembly.completion == read_completion(json.dumps(completion(message)).encode())


def test_a_server_that_numbers_no_calls_begins_a_new_one_with_each_id() -> None:
    assembly = Assembly()
    for delta in (
        {"id": "a", "function": {"name": "f", "arguments": "{"}},
        {"function": {"arguments": "}"}},
        {"id": "b", "function": {"name": "g", "arguments": "{}"}},
    ):
        assembly.feed(f"data: {json.dumps({'choices': [{'delta': {'tool_calls': [delta]}}]})}\r\n\r\n".encode())
    assert assembly.completion.message is not None
    assert [call["function"] for call in assembly.completion.message["tool_calls"]] == [
        {"name": "f", "arguments": "{}"},
        {"name": "g", "arguments": "{}"},
    ]
    assert not assembly.whole
