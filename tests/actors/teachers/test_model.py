"""A teacher's model: failures are values, mistakes are raised, and what was paid for is not paid for again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.teachers.model import TeacherModel
from coa.errors import ContextTooLong, EmptyCompletion, EndpointDown, RequestRefused, UserError
from coa.llm.client import EndpointConfig
from coa.llm.completions import Completion
from coa.usage import Usage
from tests.support.endpoints import Script, serving

ASKED = [{"role": "user", "content": "Who ?"}]
QUICK: dict[str, Any] = {"name": "m", "pause_s": 0.001, "max_pause_s": 0.01, "attempts": 2}


def played(folder: Path, *faults: str, seeds: list[list[int]]) -> list[Any]:
    """The replies for seeds, one after the other; each list is asked by a process of its own."""

    async def go() -> list[Any]:
        answers: list[Any] = []
        async with serving(Script(faults=faults)) as server:
            for of_one in seeds:
                model = TeacherModel(EndpointConfig(**QUICK, url=server.url), folder)
                answers += [await model.complete(ASKED, seed) for seed in of_one]
                await model.close()
        return answers

    return asyncio.run(go())


def test_what_is_down_is_a_value(tmp_path: Path) -> None:
    answers = played(tmp_path, "2-3=500", "4-5=empty", "6=context", "7=half", seeds=[list(range(6))])
    first, down, empty, too_long, *rest = answers
    whole = [Completion(f"seed {n}, 1 messages: Who ?", "stop", Usage(1 + (n == 4), 2, 7)) for n in (0, 4, 5)]
    assert [first, *rest] == whole
    assert [type(one) for one in (down, empty, too_long)] == [EndpointDown, EmptyCompletion, ContextTooLong]


def test_calls_of_tools_are_a_reply_where_tools_are_offered_and_are_not_paid_for_twice(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}

    async def go() -> list[Any]:
        answers: list[Any] = []
        async with serving(Script(reply=lambda messages, seed: {"tool_calls": [call]})) as server:
            for options in (None, {"tools": [call]}, {"tools": [call]}):
                model = TeacherModel(EndpointConfig(**QUICK, url=server.url), tmp_path)
                answers.append(await model.complete([{"role": "assistant", "tool_calls": [call]}], 0, options))
                await model.close()
        return answers

    without, *with_tools = asyncio.run(go())
    assert isinstance(without, EmptyCompletion)
    assert [one.tool_calls for one in with_tools] == [(call,), (call,)]
    assert [one.usage for one in with_tools] == [Usage(1, 1, 0)] * 2


def test_a_mistake_is_raised_at_every_call_and_known_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="status 404"):
        played(tmp_path, "*=404", seeds=[[0]])
    monkeypatch.delenv("TEST_MODEL_KEY", raising=False)
    model = TeacherModel(EndpointConfig(key_env="TEST_MODEL_KEY"), tmp_path)
    assert model.mistake() == "the environment variable TEST_MODEL_KEY is not set; set it to the service's key"
    for seed in range(2):
        with pytest.raises(UserError, match="TEST_MODEL_KEY is not set"):
            asyncio.run(model.complete(ASKED, seed))
    assert TeacherModel(EndpointConfig(), tmp_path).mistake() == ""


def test_a_teacher_that_answered_before_a_restart_may_refuse_whatever_is_left(tmp_path: Path) -> None:
    first, kept, *refused = played(tmp_path, "2-9=400", seeds=[[0], [0, 1, 2, 3]])
    assert isinstance(first, Completion)
    assert kept == first
    assert [type(one) for one in refused] == [RequestRefused] * 3


def test_what_a_request_took_before_it_was_answered_is_counted_with_its_answer(tmp_path: Path) -> None:
    empty, down, whole, kept = played(tmp_path, "1-2=empty", "3-4=500", seeds=[[0]] * 4)
    assert [type(empty), type(down)] == [EmptyCompletion, EndpointDown]
    in_vain = empty.usage
    assert (in_vain.requests, in_vain.prompt_tokens) == (2, 4)
    assert down.usage == in_vain + Usage(2)
    assert whole.usage == kept.usage == in_vain + Usage(2) + Usage(1, 2, 7)


def test_a_request_under_way_is_sent_again_to_a_server_that_has_moved(tmp_path: Path) -> None:
    async def go() -> Any:
        async with serving(Script(faults=("*=500",))) as old, serving(Script()) as new:
            config = EndpointConfig(**(QUICK | {"attempts": 1000}), url=old.url)
            model = TeacherModel(config, tmp_path)
            asking = asyncio.ensure_future(model.complete(ASKED, 0))
            await old.arrived(2)
            model.move(new.url)
            answer = await asking
            await model.close()
            return answer

    assert asyncio.run(go()).text == "seed 0, 1 messages: Who ?"


def test_equal_requests_under_way_are_sent_once(tmp_path: Path) -> None:
    async def go() -> tuple[list[Any], int]:
        async with serving(Script(latency_s=0.05)) as server:
            model = TeacherModel(EndpointConfig(**QUICK, url=server.url), tmp_path)
            answers = await asyncio.gather(*(model.complete(ASKED, seed) for seed in (0, 1, 0, 1, 0)))
            await model.close()
            return answers, len(server.seen)

    answers, sent = asyncio.run(go())
    assert sent == 2
    assert answers[0] == answers[2] == answers[4] != answers[1] == answers[3]


def test_what_was_sent_before_a_kill_is_counted(tmp_path: Path) -> None:
    async def go() -> Any:
        async with serving(Script(latency_s=60)) as slow, serving(Script()) as server:
            killed, next_one = (
                TeacherModel(EndpointConfig(**QUICK, url=url), tmp_path) for url in (slow.url, server.url)
            )
            asking = asyncio.ensure_future(killed.complete(ASKED, 0))
            while not slow.seen:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            answer = await next_one.complete(ASKED, 0)  # after a kill, which tells nobody anything
            asking.cancel()
            for model in (killed, next_one):
                await model.close()
            return answer

    assert asyncio.run(go()).usage == Usage(2, 2, 7)


def test_an_endpoint_that_does_not_answer_is_told_of_until_it_does(tmp_path: Path) -> None:
    async def go() -> list[str]:
        async with serving(Script(faults=("1-4=500",))) as server:
            model = TeacherModel(EndpointConfig(**QUICK, url=server.url), tmp_path)
            told = []
            for seed in range(3):
                await model.complete(ASKED, seed)
                told.append(model.trouble())
            await model.close()
            return told

    assert asyncio.run(go()) == ["", "model m: 4 attempts in a row failed: status 500: told to say 500", ""]
