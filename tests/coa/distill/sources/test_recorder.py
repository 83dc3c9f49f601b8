"""The recorder, between a real client and a real server: what is passed on, what is kept, what never is."""

import asyncio
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.distill.sources.recorder import RecorderConfig, serving
from coa.distill.sources.recorder.records import file_name
from tests.support import servers
from tests.support.patience import PATIENCE_S
from tests.support.recordings import (
    ASKED,
    CALLED,
    KEY,
    SAID,
    USAGE,
    Model,
    completion,
    events,
    kept,
    post,
    recording,
    streamed,
)

pytestmark = pytest.mark.anyio

# What is passed on and kept.


async def test_a_reply_is_passed_on_and_kept(tmp_path: Path) -> None:
    async with recording(tmp_path, SAID, CALLED) as (url, model):
        assert await post(f"{url}/session/run 1/v1") == (200, json.dumps(completion(SAID)).encode())
        await post(f"{url}/session/run 1/task/t7/v1", {**ASKED, "tools": [{"type": "function"}]})
        assert model.bodies[0] == ASKED
        assert model.paths[0] == "/v1/chat/completions"
    first, second = kept(tmp_path, "run 1")
    line = {name: first[name] for name in ("session", "task", "status", "model", "stream", "messages", "failure")}
    assert line == {
        "session": "run 1",
        "task": "",
        "status": 200,
        "model": "m-1",
        "stream": False,
        "messages": ASKED["messages"],
        "failure": "",
    }
    assert (first["reply"], first["finish"], first["usage"]) == (SAID, "stop", USAGE)
    assert (second["reply"], second["finish"], second["task"]) == (CALLED, "tool_calls", "t7")
    assert second["tools"] == [{"type": "function"}]
    assert first["began"] <= second["began"]


@pytest.mark.parametrize("torn", ['{"session": "run-1", "mess', ""])
async def test_a_record_begins_a_line_of_its_own_whatever_stands_before_it(torn: str, tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(torn)
    async with recording(tmp_path, SAID, SAID) as (url, _):
        for _ in range(2):
            await post(f"{url}/session/s/v1")
    lines = (tmp_path / "s.jsonl").read_text().splitlines()
    assert lines[:-2] == ([torn] if torn else [])
    assert [json.loads(line)["reply"] for line in lines[-2:]] == [SAID, SAID]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_where_the_disk_is_full_calls_are_passed_on_whole_and_a_line_says_so_once(stream: bool, tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").symlink_to("/dev/full")
    said: list[str] = []

    async def main() -> list[tuple[int, bytes]]:
        async with recording(tmp_path, SAID, SAID, CALLED, say=said.append) as (url, _):
            replies = [await post(f"{url}/session/s/v1", {**ASKED, "stream": stream}) for _ in range(2)]
            await post(f"{url}/session/other/v1")
            return replies

    reply = b"".join(events(SAID)) if stream else json.dumps(completion(SAID)).encode()
    assert asyncio.run(main()) == [(200, reply)] * 2
    line = "no space left on the disk: calls are passed on, and not recorded until there is some"
    summary = f"recorded 1 call, in {tmp_path}; not recorded: 2 x for lack of space"
    assert said == [f"{tmp_path / 's.jsonl'}: {line}", summary]
    assert [record["reply"] for record in kept(tmp_path, "other")] == [CALLED]


@pytest.mark.parametrize("message", [SAID, CALLED], ids=["text", "tool calls"])
def test_a_streamed_reply_is_passed_on_byte_by_byte_and_kept_as_one(message: dict[str, Any], tmp_path: Path) -> None:
    async def main() -> bytes:
        async with recording(tmp_path, message) as (url, _):
            return (await post(f"{url}/session/s/v1", {**ASKED, "stream": True}))[1]

    assert asyncio.run(main()) == b"".join(events(message))
    [record] = kept(tmp_path, "s")
    assert record["reply"] == message
    assert (record["stream"], record["usage"], record["failure"]) == (True, USAGE, "")


def test_a_stream_is_passed_on_as_it_comes(tmp_path: Path) -> None:
    async def main() -> None:
        seen = asyncio.Event()
        first, *rest = events(SAID)

        async def waits_for_its_reader(request: web.Request) -> web.StreamResponse:
            response = await streamed(request, [first])
            await asyncio.wait_for(seen.wait(), PATIENCE_S)
            for piece in rest:
                await response.write(piece)
            return response

        async with recording(tmp_path, waits_for_its_reader) as (url, _), aiohttp.ClientSession() as session:
            body = {**ASKED, "stream": True}
            async with session.post(f"{url}/session/s/v1/chat/completions", json=body) as response:
                assert await response.content.readexactly(len(first)) == first
                seen.set()
                assert await response.content.read() == b"".join(rest)

    asyncio.run(main())


async def test_other_paths_are_passed_on_and_not_kept(tmp_path: Path) -> None:
    async with recording(tmp_path, SAID) as (url, model), aiohttp.ClientSession() as session:
        async with session.get(f"{url}/session/s/v1/models?limit=2") as response:
            assert (await response.json())["data"][0]["id"] == "m-1"
        assert model.paths == ["/v1/models?limit=2"]
        async with session.get(f"{url}/metrics") as response:
            assert response.status == 404
    assert list(tmp_path.iterdir()) == []


# Whose call it is.


async def test_the_session_is_the_paths_then_the_headers_then_the_recorders_own(tmp_path: Path) -> None:
    async with recording(tmp_path, SAID, SAID, SAID, SAID) as (url, model):
        await post(f"{url}/session/a/v1", headers={"X-Session-Id": "b"})
        await post(f"{url}/v1", headers={"X-Session-Id": "b", "X-Task-Id": "t2"})
        await post(f"{url}/v1", {**ASKED, "metadata": {"task": "t3"}})
        await post(f"{url}/task/t4/v1")
        assert not [name for head in model.heads for name in head if name.lower().startswith(("x-session", "x-task"))]
    *own, a, b = sorted(tmp_path.iterdir(), key=lambda file: (len(file.name) < 10, file.name))
    assert [file.name for file in (a, b)] == ["a.jsonl", "b.jsonl"]
    assert [record["task"] for record in kept(tmp_path, "b")] == ["t2"]
    [mine] = own
    assert mine.name.startswith("recorded-")
    assert [record["task"] for record in kept(tmp_path, mine.stem)] == ["t3", "t4"]


def test_two_sessions_at_once_do_not_mix(tmp_path: Path) -> None:
    async def main() -> None:
        both = asyncio.Barrier(2)

        async def together(request: web.Request) -> web.StreamResponse:
            said = (await request.json())["messages"][0]["content"]
            await asyncio.wait_for(both.wait(), PATIENCE_S)
            return await streamed(request, events({"role": "assistant", "content": f"re {said}"}))

        async with recording(tmp_path, *[together] * 6) as (url, _):

            async def agent(name: str) -> None:
                for n in range(3):
                    asked = {**ASKED, "stream": True, "messages": [{"role": "user", "content": f"{name}{n}"}]}
                    await post(f"{url}/session/{name}/v1", asked)

            await asyncio.gather(agent("a"), agent("b"))

    asyncio.run(main())
    for name in ("a", "b"):
        assert [record["reply"]["content"] for record in kept(tmp_path, name)] == [f"re {name}{n}" for n in range(3)]


TRICKS = ["../../x", "..", ".", "/etc/passwd", "a\\b", "a\0b", ".hidden", "x.jsonl", "%2e%2e"]


@pytest.mark.parametrize("session", [trick for trick in TRICKS if "\0" not in trick])
async def test_a_session_id_never_leads_out_of_the_folder(session: str, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "here"
    async with recording(folder, SAID, SAID) as (url, _):
        assert (await post(f"{url}/v1", headers={"X-Session-Id": session}))[0] == 200
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [folder / file_name(session)]
    assert kept(folder, session)[0]["session"] == session


@settings(deadline=None)
@given(st.lists(st.one_of(st.text(min_size=1, max_size=12), st.sampled_from(TRICKS)), min_size=2, max_size=2))
def test_each_session_has_a_file_of_its_own(sessions: list[str]) -> None:
    sessions = [session for session in sessions if session.strip()]
    try:
        names = [file_name(session.encode(errors="replace").decode()) for session in sessions]
    except ValueError:
        return
    assert all("/" not in name and "\0" not in name and not name.startswith(".") for name in names)
    assert len(set(names)) == len({session.encode(errors="replace") for session in sessions})


async def test_an_overlong_session_id_is_refused_before_the_model_is_asked(tmp_path: Path) -> None:
    async with recording(tmp_path) as (url, model):
        status, body = await post(f"{url}/session/{'x' * 300}/v1")
        assert status == 400
        assert b"session id" in body
        assert model.paths == []


# Keys.


async def test_no_key_is_ever_kept_or_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("UPSTREAM_KEY", "sk-of-the-endpoint-987654")

    async def echoes(request: web.Request) -> web.StreamResponse:
        return web.json_response(completion({"role": "assistant", "content": request.headers["Authorization"]}))

    asked = {**ASKED, "messages": [{"role": "user", "content": f"my key is {KEY}"}]}
    async with recording(tmp_path, SAID) as (url, model):
        await post(f"{url}/session/passed on/v1", asked, {"Authorization": f"Bearer {KEY}"})
        assert model.heads[0]["Authorization"] == f"Bearer {KEY}"
    async with recording(tmp_path, echoes, key_env="UPSTREAM_KEY") as (url, model):
        await post(f"{url}/session/replaced/v1", asked, {"Authorization": f"Bearer {KEY}"})
        assert model.heads[0]["Authorization"] == "Bearer sk-of-the-endpoint-987654"
    async with servers.closed_port() as nobody:
        config = RecorderConfig(upstream=f"{nobody}/v1", folder=tmp_path, key_env="UPSTREAM_KEY")
        async with serving(config) as url:
            assert (await post(f"{url}/session/down/v1", asked, {"Authorization": f"Bearer {KEY}"}))[0] == 502
    assert len(list(tmp_path.iterdir())) == 3
    written = "".join(file.read_text() for file in tmp_path.iterdir())
    printed = "".join(capfd.readouterr()) + caplog.text
    assert "Bearer ***" in written
    for key in (KEY, "sk-of-the-endpoint-987654"):
        assert key not in written
        assert key not in printed


# What a person runs.

ROOT = Path(__file__).parents[4]


def test_the_recorder_of_the_documents_records(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    shown = (ROOT / "docs/recording.md").read_text().split("```python\n")[1].split("```")[0]

    async def main() -> int:
        async with servers.serving(Model([SAID]).answer) as upstream:
            program = shown.replace("http://127.0.0.1:8000", upstream)
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=tmp_path, env=environment)
            return await asyncio.wait_for(done.wait(), 60)

    assert asyncio.run(main()) == 0
    assert [record["reply"]["content"] for record in kept(tmp_path / "recorded", "run-1")] == [SAID["content"]]


def test_the_command_serves_until_it_is_ended(tmp_path: Path) -> None:
    program = "from pathlib import Path; from jobs.commands.record import run; "
    program += f"run(UPSTREAM, Path({str(tmp_path)!r}), port=0)"

    async def main() -> int:
        async with servers.serving(Model([SAID]).answer) as upstream:
            done = await asyncio.create_subprocess_exec(
                *(sys.executable, "-uc", program.replace("UPSTREAM", repr(f"{upstream}/v1"))),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
            )
            assert done.stdout is not None
            line = (await asyncio.wait_for(done.stdout.readline(), 60)).decode()
            [url] = re.findall(r"http://\S+/v1", line)
            assert (await post(url.replace("NAME", "run-1")))[0] == 200
            done.send_signal(signal.SIGTERM)
            return await asyncio.wait_for(done.wait(), PATIENCE_S)

    assert asyncio.run(main()) == 0
    assert len(kept(tmp_path, "run-1")) == 1
