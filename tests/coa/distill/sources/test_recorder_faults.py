"""The recorder where something breaks off, and how it reads streams."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.distill.sources.recorder import RecorderConfig, serving
from coa.distill.sources.recorder.call import Call
from coa.distill.sources.recorder.chat import ChatStream, read
from coa.distill.sources.recorder.protocols import PROTOCOLS
from coa.distill.sources.recorder.tally import Tally
from coa.errors import UserError
from tests.support import servers
from tests.support.patience import PATIENCE_S
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

pytestmark = pytest.mark.anyio

# What goes wrong.


async def test_an_error_of_the_endpoint_is_passed_on_and_kept_as_a_failure(tmp_path: Path) -> None:
    async def busy(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=429, headers={"Retry-After": "3"})

    async with (
        recording(tmp_path, busy) as (url, _),
        aiohttp.ClientSession() as session,
        session.post(f"{url}/session/s/v1/chat/completions", json=ASKED) as response,
    ):
        assert (response.status, response.headers["Retry-After"]) == (429, "3")
        assert await response.json() == {"error": {"message": "busy"}}
    [record] = kept(tmp_path, "s")
    assert (record["status"], record["failure"], record["reply"]) == (429, "status 429", None)


async def test_a_stream_that_breaks_off_breaks_off_for_the_client_too(tmp_path: Path) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = await streamed(request, events(SAID)[:3])
        assert request.transport is not None
        request.transport.close()
        return response

    async with recording(tmp_path, cut) as (url, _), aiohttp.ClientSession() as session:
        body = {**ASKED, "stream": True}
        async with session.post(f"{url}/session/s/v1/chat/completions", json=body) as response:
            assert response.status == 200
            with pytest.raises(aiohttp.ClientPayloadError):
                await response.read()
    [record] = kept(tmp_path, "s")
    assert record["failure"] == "the answer broke off"
    assert record["reply"]["content"] == "Bérg, "


async def test_a_stream_that_ends_too_early_is_kept_as_broken(tmp_path: Path) -> None:
    async with recording(tmp_path, lambda request: streamed(request, events(SAID)[:3])) as (url, _):
        assert (await post(f"{url}/session/s/v1", {**ASKED, "stream": True}))[1] == b"".join(events(SAID)[:3])
    assert kept(tmp_path, "s")[0]["failure"] == "the answer broke off"


@pytest.mark.parametrize(
    "failures",
    [
        ("overloaded (request id req_abc)", "overloaded (request id req_xyzw)"),
        ('overloaded, "request_id": "k-Ab.9"', 'overloaded, "request_id": "Z"'),
        ("no room for chatcmpl-9sKqX", "no room for chatcmpl-AbT2z"),
        ("no room for 550e8400-e29b-41d4-a716-446655440000", "no room for deadbeef-e29b-41d4-abcd-446655440000"),
        ("try again in 6m1.5s", "try again in 20ms"),
        ("busy at 2026-11-26T09:59:58Z", "busy at 2026-12-01T10:00:03Z"),
    ],
)
def test_failures_that_differ_in_a_time_or_an_id_are_one_kind(failures: tuple[str, str]) -> None:
    said: list[str] = []
    tally = Tally(said.append)
    other = "a request_id is missing"
    for failure in (*failures, other):
        call = Call(PROTOCOLS["messages"], b"{}", "s", "", lambda: 0.0)
        call.answered(200)
        call.ended(failure)
        record = call.record()
        assert record is not None
        tally.recorded(record)
    assert said == [f"a call of session s is recorded as failed: {failure}" for failure in (failures[0], other)]


async def test_a_slow_endpoint_is_given_up(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    async with servers.serving(silent) as upstream:
        config = RecorderConfig(upstream=f"{upstream}/v1", folder=tmp_path, silence_s=0.05)
        async with serving(config) as url:
            assert (await post(f"{url}/session/s/v1"))[0] == 504
    [record] = kept(tmp_path, "s")
    assert (record["status"], record["failure"]) == (0, "the model endpoint said nothing for too long")


async def test_what_is_no_reply_is_passed_on_and_kept_as_a_failure(tmp_path: Path) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    async with recording(tmp_path, page) as (url, _):
        assert await post(f"{url}/session/s/v1") == (200, b"<html>")
    assert kept(tmp_path, "s")[0]["failure"] == "the answer is no reply of a model: <html>"


def open_ended(words: list[bytes], gone: asyncio.Event) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Says these words, then that it is still here, until its client has gone."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = await streamed(request, words)
        try:
            while True:
                await response.write(b": still here\n\n")
                await asyncio.sleep(0.01)
        except ConnectionError:
            gone.set()
            raise

    return handle


async def test_a_client_that_goes_away_ends_the_call_of_the_model(tmp_path: Path) -> None:
    gone = asyncio.Event()
    async with recording(tmp_path, open_ended(events(SAID)[:2], gone)) as (url, _), aiohttp.ClientSession() as session:
        response = await session.post(f"{url}/session/s/v1/chat/completions", json={**ASKED, "stream": True})
        await response.content.readany()
        response.close()
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
    [record] = kept(tmp_path, "s")
    assert record["failure"] == "the client went away"


@pytest.mark.parametrize("words", [events(SAID), events(SAID)[:-2]], ids=["[DONE]", "finish_reason"])
async def test_a_client_that_closes_the_connection_at_the_last_words_has_the_reply(
    words: list[bytes], tmp_path: Path
) -> None:
    gone = asyncio.Event()
    async with recording(tmp_path, open_ended(words, gone)) as (url, _), aiohttp.ClientSession() as session:
        response = await session.post(f"{url}/session/s/v1/chat/completions", json={**ASKED, "stream": True})
        seen = b""
        while b"still here" not in seen:
            seen += await response.content.readany()
        response.close()
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
    [record] = kept(tmp_path, "s")
    assert (record["failure"], record["finish"]) == ("", "stop")


async def test_a_client_that_goes_away_before_a_word_was_said_ends_the_call_too(tmp_path: Path) -> None:
    asked, gone = asyncio.Event(), asyncio.Event()

    async def silent(request: web.Request) -> web.StreamResponse:
        asked.set()
        while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        gone.set()
        raise ConnectionError

    async with recording(tmp_path, silent) as (url, _):
        client = asyncio.create_task(post(f"{url}/session/s/v1"))
        await asyncio.wait_for(asked.wait(), PATIENCE_S)
        client.cancel()
        await asyncio.wait_for(gone.wait(), PATIENCE_S)
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
    assembly, at = ChatStream(), 0
    for cut in [*sorted(min(cut, len(data)) for cut in cuts), len(data)]:
        assembly.feed(data[at:cut])
        at = cut
    assert assembly.whole
    assert assembly.fault == ""
    assert assembly.completion == read(completion(message))
