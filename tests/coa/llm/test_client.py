"""One client for language models: what is sent, what comes back, what is tried again and counted."""

import asyncio
import json
import pickle
from typing import Any

import pytest

from coa.config import dump, load
from coa.errors import (
    EmptyCompletion,
    EndpointDown,
    UserError,
)
from coa.llm.client import EMPTIES, Endpoint, EndpointConfig
from coa.llm.completions import Completion
from coa.usage import Usage
from tests.support.asking import ASKED, COMPLETION, PROMPT, QUICK, REPLY, WHOLE, ask, asked
from tests.support.endpoints import Script, serving
from tests.support.servers import closed_port, raw, response

# What is sent, and what comes back.


def bodies(config: EndpointConfig, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    async def go() -> list[dict[str, Any]]:
        async with serving() as server:
            endpoint = Endpoint(EndpointConfig(**{**vars(config), "url": f"{server.url}/"}))
            for call in calls:
                await endpoint.complete(ASKED, **call)
            await endpoint.close()
            return server.bodies

    return asyncio.run(go())


def test_a_reply_has_its_text_how_it_ended_and_what_it_took() -> None:
    answer, counts, outcomes = asked()
    assert answer == WHOLE
    assert counts == {"attempts": 1, "prompt tokens": PROMPT, "completion tokens": COMPLETION}
    assert outcomes == ["200"]
    cut, _, _ = asked(max_tokens=2)
    assert cut == Completion(REPLY[:8], "length", Usage(1, PROMPT, 2))


def test_a_request_holds_what_is_set_and_nothing_that_is_not() -> None:
    plain = EndpointConfig(name="m")
    full = EndpointConfig(
        name="m", temperature=0.5, top_p=0.9, max_tokens=99, extra={"reasoning_effort": "low", "top_k": 3}
    )
    first, second = bodies(plain, {"seed": None}, {"seed": 3, "stop": ["</plan>"], "max_tokens": None, "n": 1})
    assert first == {"model": "m", "messages": ASKED, "max_tokens": 4096}
    assert second == {"model": "m", "messages": ASKED, "seed": 3, "stop": ["</plan>"], "n": 1}
    [third] = bodies(full, {"seed": 0, "temperature": 0.0, "top_k": 4})
    sampling = {"seed": 0, "temperature": 0.0, "top_p": 0.9, "max_tokens": 99}
    assert third == {"model": "m", "messages": ASKED, **sampling, "reasoning_effort": "low", "top_k": 3}


def test_a_recipe_may_hold_any_further_field() -> None:
    config = load(EndpointConfig, None, ["extra={structured_outputs: {choice: [a, b]}}", "requests_per_minute=60"])
    assert config.extra == {"structured_outputs": {"choice": ["a", "b"]}}
    assert "choice" in dump(config)
    with pytest.raises(UserError, match=r"^attempts is 0, expected at least 1"):
        load(EndpointConfig, None, ["attempts=0"])
    with pytest.raises(UserError, match=r"^concurrent is -1, expected at least 0"):
        load(EndpointConfig, None, ["concurrent=-1"])


@pytest.mark.parametrize(
    ("usage", "took"),
    [
        ({}, Usage(1)),
        ({"usage": None}, Usage(1)),
        ({"usage": {"total_tokens": 12}}, Usage(1, 0, 12)),
        ({"usage": {"prompt_tokens": 5, "total_tokens": 12}}, Usage(1, 5, 7)),
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 0, "total_tokens": 12}}, Usage(1, 5, 0)),
    ],
)
def test_usage_is_read_as_far_as_it_is_reported(usage: dict[str, Any], took: Usage) -> None:
    body = json.dumps({"choices": [{"message": {"content": "\ud83d so"}}], **usage}).encode()

    async def go() -> Any:
        async with raw([response("200 OK", body)]) as (url, _):
            return (await ask(url))[0]

    assert asyncio.run(go()) == Completion("? so", "", took)


# Faults that pass.

PASSING = {
    "reset": "reset",
    "half": "cut",
    "malformed": "malformed",
    "none": "malformed",
    "empty": "empty",
    "error": "error in the reply",
    "abort": "finish reason abort",
    "500": "status 500",
    "529": "status 529",
    "429": "status 429",
}
"""Each fault, and the reason that it is counted by."""
LAST = {
    "reset": "connection closed without an answer",
    "half": "the answer broke off",
    "malformed": 'not a chat completion: {"id": "chatcmpl-0", "object": "chat.completion", "model": "m", "choices": [',
    "none": 'not a chat completion: {"id": "chatcmpl-0", "object": "chat.completion", "model": "m", "choices": []',
    "empty": "a completion without text",
    "error": "an error in place of a completion: the model is overloaded",
    "abort": "a completion that ended by abort",
    "500": "status 500: told to say 500",
    "529": "status 529: told to say 529",
    "429": "status 429: told to say 429",
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_leaves_no_trace_but_counts(fault: str) -> None:
    times = EMPTIES - 1 if fault == "empty" else 3
    answer, counts, outcomes = asked(f"1-{times}={fault}")
    if fault == "empty":
        assert answer.usage.requests == EMPTIES
    else:
        assert answer == Completion(REPLY, "stop", Usage(4, PROMPT, COMPLETION))
    assert outcomes == [fault] * times + ["200"]
    assert (counts["attempts"], counts["retries"], counts[f"retries: {PASSING[fault]}"]) == (times + 1, times, times)


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_stays_is_reported_once_all_attempts_are_made(fault: str) -> None:
    answer, counts, outcomes = asked(f"*={fault}")
    assert type(answer) is (EmptyCompletion if fault == "empty" else EndpointDown)
    assert str(answer).startswith("http://127.0.0.1:")
    assert f"/v1/chat/completions: {LAST[fault]}" in str(answer)
    assert len(outcomes) == counts["attempts"] == (EMPTIES if fault == "empty" else 4)
    if isinstance(answer, EndpointDown):
        assert answer.reason == PASSING[fault]
        again = pickle.loads(pickle.dumps(answer))
        assert (str(again), again.reason) == (str(answer), answer.reason)


def test_a_reply_in_time_is_asked_for_as_often_as_may_be() -> None:
    answer, _, outcomes = asked("1=slow:900", timeout_s=100)
    assert answer == Completion(REPLY, "stop", Usage(2, PROMPT, COMPLETION))
    answer, counts, outcomes = asked("*=slow:900", timeout_s=100, timeouts=3)
    assert str(answer).endswith(": nothing within 100 s")
    assert counts == {"attempts": 3, "retries": 2, "retries: timeout": 2}
    assert len(outcomes) == 3


def test_an_endpoint_that_is_gone_for_a_while_is_waited_for() -> None:
    answer, counts, outcomes = asked("1=gone:1", attempts=6000, pause_s=0.05, max_pause_s=0.05)
    assert answer.text == REPLY
    assert outcomes == ["gone", "200"]
    assert counts["retries: refused"] >= 1

    async def go() -> Any:
        async with closed_port() as url:
            return (await ask(url))[0]

    down = asyncio.run(go())
    assert (type(down), down.reason) == (EndpointDown, "refused")


def test_who_takes_replies_as_they_are_gets_the_first() -> None:
    async def go(fault: str) -> tuple[Any, int]:
        async with serving(Script(faults=[f"*={fault}"])) as server:
            config = EndpointConfig(url=server.url, **QUICK)
            answer, _ = await ask(server.url, Endpoint(config, insists=False))
            return answer, len(server.seen)

    (empty, once), (down, also_once), (_, often) = (asyncio.run(go(fault)) for fault in ("empty", "none", "500"))
    assert (empty.text, once) == ("", 1)
    assert (type(down), also_once) == (EndpointDown, 1)
    assert often == 4
    assert asyncio.run(go("429:3600"))[1] == 4, "nor is a time waited for that the server names"
