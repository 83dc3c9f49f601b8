"""One client for language models: what is sent, what comes back, what is tried again, reported and counted."""

import asyncio
import json
import pickle
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from servers import closed_port, raw, response

from coa.config import dump, load
from coa.errors import (
    ContextTooLong,
    EmptyCompletion,
    EndpointDown,
    InfrastructureError,
    ReplyCutOff,
    RequestRefused,
    UserError,
)
from coa.models.completion import Completion, Rejected, Teller, estimate, read, said
from coa.models.endpoint import Endpoint, EndpointConfig, check_endpoint
from coa.seeds import derive
from coa.tools.http import Reply
from coa.usage import Usage
from tests.endpoints import CONTEXT, EndpointProcess, Script, read_log, request_id, serving, wait_for_log

ASKED = [{"role": "system", "content": "You plan."}, {"role": "user", "content": "Who ?"}]
REPLY = "seed 7, 2 messages: Who ?"
PROMPT, COMPLETION = 5, 7
"""Tokens of both."""
WHOLE = Completion(REPLY, "stop", Usage(1, PROMPT, COMPLETION))
QUICK: dict[str, Any] = {"name": "m", "pause_s": 0.001, "max_pause_s": 0.01, "attempts": 4}


async def ask(url: str, endpoint: Endpoint | None = None, **config: Any) -> tuple[Any, dict[str, int]]:
    """A completion or what was raised, and what was counted."""
    endpoint = endpoint or Endpoint(EndpointConfig(url=url, **{**QUICK, **config}))
    try:
        answer: Any = await endpoint.complete(ASKED, seed=7)
    except (InfrastructureError, UserError) as error:
        answer = error
    await endpoint.close()
    return answer, dict(endpoint.http.counts)


def asked(*faults: str, script: dict[str, Any] | None = None, **config: Any) -> tuple[Any, dict[str, int], list[str]]:
    """The same of an endpoint with these faults, and how each request ended there."""

    async def go() -> tuple[Any, dict[str, int], list[str]]:
        async with serving(Script(faults=faults, **(script or {}))) as endpoint:
            answer, counts = await ask(endpoint.url, **config)
            return answer, counts, [seen.outcome for seen in endpoint.seen]

    return asyncio.run(go())


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
    assert third == {"model": "m", "messages": ASKED, **sampling, "reasoning_effort": "low", "top_k": 4}


def test_a_recipe_may_hold_any_further_field() -> None:
    config = load(EndpointConfig, None, ["extra={structured_outputs: {choice: [a, b]}}", "requests_per_minute=60"])
    assert config.extra == {"structured_outputs": {"choice": ["a", "b"]}}
    assert "choice" in dump(config)
    with pytest.raises(UserError, match="an endpoint's attempts is 0, expected more than 0"):
        load(EndpointConfig, None, ["attempts=0"])
    with pytest.raises(UserError, match="an endpoint's concurrent is -1, expected 0 or more"):
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
def test_usage_is_read_as_far_as_it_is_told(usage: dict[str, Any], took: Usage) -> None:
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
    "malformed": "not a chat completion",
    "none": "not a chat completion",
    "empty": "a completion without text",
    "error": "an error in place of a completion: the model is overloaded",
    "abort": "a completion that ended by abort",
    "500": "status 500: told to say 500",
    "529": "status 529: told to say 529",
    "429": "status 429: told to say 429",
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_passes_leaves_no_trace_but_counts(fault: str) -> None:
    answer, counts, outcomes = asked(f"1-3={fault}")
    if fault == "empty":
        assert answer.usage.requests == 4
    else:
        assert answer == Completion(REPLY, "stop", Usage(4, PROMPT, COMPLETION))
    assert outcomes == [fault.partition(":")[0]] * 3 + ["200"]
    assert (counts["attempts"], counts["retries"], counts[f"retries: {PASSING[fault]}"]) == (4, 3, 3)


@pytest.mark.parametrize("fault", PASSING)
def test_a_fault_that_stays_is_reported_once_all_attempts_are_made(fault: str) -> None:
    answer, counts, outcomes = asked(f"*={fault}")
    assert type(answer) is (EmptyCompletion if fault == "empty" else EndpointDown)
    assert str(answer).startswith("http://127.0.0.1:")
    assert str(answer).endswith(f"/v1/chat/completions: {LAST[fault]}")
    assert len(outcomes) == counts["attempts"] == 4
    if isinstance(answer, EndpointDown):
        assert answer.reason == PASSING[fault]
        again = pickle.loads(pickle.dumps(answer))
        assert (str(again), again.reason) == (str(answer), answer.reason)


def test_a_reply_in_time_is_asked_for_as_often_as_may_be() -> None:
    answer, _, outcomes = asked("1=slow:9", timeout_s=0.5)
    assert answer == Completion(REPLY, "stop", Usage(2, PROMPT, COMPLETION))
    answer, counts, outcomes = asked("*=slow:9", timeout_s=0.2, timeouts=3)
    assert str(answer).endswith(": nothing within 0.2 s")
    assert counts == {"attempts": 3, "retries": 2, "retries: timeout": 2}
    assert len(outcomes) == 3


def test_an_endpoint_that_is_gone_for_a_while_is_waited_for() -> None:
    answer, counts, outcomes = asked("1=gone:0.3", attempts=60, pause_s=0.05, max_pause_s=0.05)
    assert answer.text == REPLY
    assert outcomes == ["gone", "200"]
    assert counts["retries: refused"] >= 1

    async def go() -> Any:
        async with closed_port() as url:
            return (await ask(url))[0]

    down = asyncio.run(go())
    assert (type(down), down.reason) == (EndpointDown, "refused")


def test_who_takes_replies_as_they_are_is_told_of_the_first() -> None:
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


# What a person must put right.


@pytest.mark.parametrize(
    ("fault", "kind", "what"),
    [
        ("401", UserError, "the key is missing: status 401: told to say 401"),
        ("403", UserError, "the key is missing: status 403: told to say 403"),
        ("400", RequestRefused, "status 400: told to say 400"),
        ("404", UserError, "status 404: told to say 404"),
        ("422", RequestRefused, "status 422: told to say 422"),
        ("302", UserError, "status 302: told to say 302"),
        ("context", ContextTooLong, f"status 400: {CONTEXT}"),
        ("413", ContextTooLong, "status 413: told to say 413"),
        ("spent", UserError, "the quota is spent: status 429: check your plan"),
        (
            "429:3600",
            UserError,
            "go on in 3600 s (max_retry_after_s is 600): status 429: told to say 429",
        ),
    ],
)
def test_what_no_further_attempt_can_help_is_told_at_once(fault: str, kind: type[Exception], what: str) -> None:
    answer, counts, outcomes = asked(f"*={fault}")
    assert type(answer) is kind
    assert str(answer).endswith(f"/chat/completions: {what}")
    assert (len(outcomes), counts) == (1, {"attempts": 1})


def test_who_waited_for_a_place_is_sent_before_the_reply_that_freed_it_is_worked_on() -> None:
    async def go() -> list[int]:
        async with serving() as server:
            endpoint = Endpoint(EndpointConfig(url=server.url, **QUICK, concurrent=1))
            sent: list[int] = []

            async def ask_one(seed: int) -> None:
                await endpoint.complete(ASKED, seed=seed)
                sent.append(endpoint.http.counts["attempts"])

            await asyncio.gather(ask_one(1), ask_one(2))
            await endpoint.close()
            return sent

    assert asyncio.run(go()) == [2, 2]


def refusals(
    *seeds: int, faults: Sequence[str], options: Mapping[str, Any] | None = None, **settings: Any
) -> list[type[Exception] | str]:
    """Of requests with these seeds: what was raised, or how the reply ended."""

    async def go() -> list[type[Exception] | str]:
        async with serving(Script(faults=faults)) as server:
            endpoint = Endpoint(EndpointConfig(url=server.url, **QUICK), **settings)
            ended: list[type[Exception] | str] = []
            for seed in seeds:
                try:
                    ended.append((await endpoint.complete(ASKED, seed=seed, **(options or {}))).finish_reason)
                except (RequestRefused, UserError) as error:
                    ended.append(type(error))
            await endpoint.close()
            return ended

    return asyncio.run(go())


def test_one_request_that_is_refused_among_others_is_no_settings_fault() -> None:
    assert refusals(1, 2, 3, faults=["1-2=400"]) == [RequestRefused, RequestRefused, "stop"]
    assert refusals(1, 1, 1, 1, faults=["*=400"]) == [RequestRefused] * 4, "it is always the same one"
    assert refusals(1, 2, 3, 4, faults=["2-4=422"]) == ["stop", *[RequestRefused] * 3]


def test_first_requests_that_are_all_refused_are_a_settings_fault() -> None:
    assert refusals(1, 2, 3, faults=["*=400"]) == [RequestRefused, RequestRefused, Rejected]
    assert refusals(1, 2, 3, faults=["*=400"], answered=True) == [RequestRefused] * 3
    further = {"options": {"response_format": {"type": "json_object"}}, "answered": True}
    assert refusals(1, 2, 3, faults=["*=400"], **further) == [RequestRefused, RequestRefused, Rejected]
    assert refusals(1, 2, 3, 4, faults=["2-4=400"], **further) == ["stop", *[RequestRefused] * 3]
    assert refusals(1, faults=["*=400"], insists=False) == [Rejected]


@pytest.mark.parametrize(
    "words",
    [
        "input token count (9000) exceeds the maximum number of tokens allowed (8192)",
        "This model's maximum prompt length is 131072 but the request contains 140000 tokens",
        "Please reduce the length of the messages or completion",
    ],
)
def test_too_long_is_known_by_the_words_of_several_services(words: str) -> None:
    with pytest.raises(ContextTooLong):
        read(Reply(400, "text/plain", words.encode(), "", ""), Teller("u"))


def test_a_reply_that_is_used_up_before_its_first_word_is_not_asked_for_again() -> None:
    answer, counts, outcomes = asked("*=thinking", max_tokens=7)
    assert type(answer) is ReplyCutOff
    assert str(answer).endswith(
        ": its tokens were used up before the reply's first word: raise max_tokens of this model, which is 7"
    )
    assert outcomes == ["thinking"]
    assert answer.usage == Usage(1, PROMPT, counts["completion tokens"])


def test_a_request_that_got_no_text_is_sent_with_another_seed() -> None:
    async def go(*faults: str, seed: int | None) -> list[Any]:
        async with serving(Script(faults=faults)) as server:
            endpoint = Endpoint(EndpointConfig(url=server.url, **QUICK))
            await endpoint.complete(ASKED, seed=seed)
            await endpoint.close()
            return [body.get("seed") for body in server.bodies]

    first, second, third = asyncio.run(go("1-2=empty", seed=7))
    assert (first, second, third) == (7, derive(7, "empty", 1), derive(7, "empty", 2))
    assert asyncio.run(go("1-2=500", seed=7)) == [7, 7, 7], "what was no reply is asked for as it was"
    assert asyncio.run(go("1-2=empty", seed=None)) == [None, None, None]


def test_what_empty_replies_took_is_told() -> None:
    answer, counts, _ = asked("*=empty")
    assert type(answer) is EmptyCompletion
    assert answer.usage == Usage(4, 4 * PROMPT, counts["completion tokens"])
    assert pickle.loads(pickle.dumps(answer)).usage == answer.usage


def test_a_key_is_sent_and_never_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_MODEL_KEY", "sk-123")
    answer, _, _ = asked(script={"key": "sk-123"}, key_env="TEST_MODEL_KEY")
    assert answer == WHOLE
    answer, _, outcomes = asked(script={"key": "sk-456"}, key_env="TEST_MODEL_KEY")
    assert type(answer) is UserError
    assert str(answer).endswith(": the key is refused: status 401: wrong key: Bearer ***")
    assert outcomes == ["401"]
    body = b'{"error": {"message": "Bearer sk-123 has no capacity"}}'

    async def overloaded() -> Any:
        async with raw([response("503 No", body)]) as (url, _):
            return (await ask(url, key_env="TEST_MODEL_KEY"))[0]

    assert str(asyncio.run(overloaded())).endswith(": status 503: Bearer *** has no capacity")
    monkeypatch.delenv("TEST_MODEL_KEY")
    with pytest.raises(UserError, match="the environment variable TEST_MODEL_KEY is not set"):
        Endpoint(EndpointConfig(key_env="TEST_MODEL_KEY"))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error": {"message": "no such model"}}', "no such model"),
        ('{"error": "no such model"}', "no such model"),
        ('{"object": "error", "message": "no such model"}', "no such model"),
        ('{"detail": "no such model"}', "no such model"),
        ('{"detail": [{"loc": 1}]}', '{"detail": [{"loc": 1}]}'),
        ("<h1>no such model</h1>", "<h1>no such model</h1>"),
        ("[" * 99999, "[" * 99999),
    ],
)
def test_what_a_server_said_is_found_in_the_forms_that_servers_use(body: str, words: str) -> None:
    assert said(body) == words


def test_what_a_server_said_is_one_line_of_bounded_length() -> None:
    assert Teller("u", "k", shows=11)("what", "one\n two k\t three four") == "u: what: one two ***"
    assert Teller("u", shows=0)("status 400", "anything") == "u: status 400"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"name": "m"}, "a language model is needed: set teachers.planner.url and teachers.planner.name"),
        ({"url": "http://x/v1"}, "a language model is needed: set teachers.planner.url and teachers.planner.name"),
        ({"url": "x/v1", "name": "m"}, "teachers.planner.url is x/v1, expected an address such as"),
        ({"url": "http://x/v1", "name": "m", "key_env": "NO_SUCH_KEY"}, "variable NO_SUCH_KEY is not set"),
    ],
)
def test_a_configuration_that_can_ask_nobody_is_a_mistake(config: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        check_endpoint(EndpointConfig(**config), "teachers.planner")
    check_endpoint(EndpointConfig(url="https://x/v1", name="m"), "teachers.planner")


# Limits.


async def at_once(endpoint: Endpoint, count: int) -> list[Any]:
    return await asyncio.gather(*(endpoint.complete(ASKED, seed=seed) for seed in range(count)))


def test_no_more_requests_are_under_way_than_may_be() -> None:
    async def go() -> int:
        async with serving(Script(latency_s=0.05)) as server:
            endpoint = Endpoint(EndpointConfig(url=server.url, concurrent=3, **QUICK))
            assert len(await at_once(endpoint, 9)) == 9
            await endpoint.close()
            assert (endpoint.limiter.running, endpoint.limiter.waiting) == (0, 0)
            return server.peak

    assert asyncio.run(go()) == 3


def test_a_time_that_a_server_names_holds_for_all_requests() -> None:
    async def go() -> list[float]:
        async with serving(Script(faults=["1=429:1"], latency_s=0.05)) as server:
            endpoint = Endpoint(EndpointConfig(**{**QUICK, "url": server.url, "concurrent": 1}))
            await at_once(endpoint, 4)
            await endpoint.close()
            finished = server.seen[0].finished
            assert finished is not None
            assert [seen.outcome for seen in server.seen] == ["429", "200", "200", "200", "200"]
            return [seen.arrived - finished for seen in server.seen[1:]]

    assert min(asyncio.run(go())) >= 0.99


def test_a_place_is_not_held_between_attempts() -> None:
    async def go() -> list[str]:
        async with serving(Script(faults=["1=500"], reply=lambda messages, seed: f"{seed}")) as server:
            config = EndpointConfig(**{**QUICK, "url": server.url, "concurrent": 1})
            endpoint = Endpoint(config)
            resting = asyncio.Event()

            async def rest(_: float) -> None:
                await resting.wait()

            endpoint.http._sleep = rest
            order: list[str] = []

            async def one(seed: int) -> None:
                order.append((await endpoint.complete(ASKED, seed=seed)).text)
                resting.set()

            await asyncio.gather(one(0), one(1))
            await endpoint.close()
            return order

    assert asyncio.run(go()) == ["1", "0"]


def test_tokens_are_put_right_by_what_a_reply_says() -> None:
    assert estimate(ASKED, 100) == 103
    assert estimate(ASKED, None) == 3

    async def go(per_minute: int) -> int:
        async with serving() as server:
            limits = {"tokens_per_minute": per_minute, "max_tokens": 100}
            endpoint = Endpoint(EndpointConfig(url=server.url, **limits, **QUICK))
            served = 0
            try:
                async with asyncio.timeout(0.5):
                    while served < 5:
                        await endpoint.complete(ASKED, seed=7)
                        served += 1
            except TimeoutError:
                pass
            await endpoint.close()
            return served

    # Each reserves 103 and takes 12: after n of them a further one needs 12 n + 103.
    assert asyncio.run(go(103 + 12 * 4)) == 5
    assert asyncio.run(go(103 + 12 * 2)) == 3


def test_who_gives_up_leaves_its_place() -> None:
    async def go() -> tuple[int, int]:
        async with serving(Script(faults=["1=slow:60"])) as server:
            endpoint = Endpoint(EndpointConfig(**{**QUICK, "url": server.url, "concurrent": 1}))
            slow = asyncio.create_task(endpoint.complete(ASKED, seed=0))
            await server.arrived(1)
            slow.cancel()
            assert (await endpoint.complete(ASKED, seed=1)).text.startswith("seed 1")
            await endpoint.close()
            return endpoint.limiter.running, len(server.seen)

    assert asyncio.run(go()) == (0, 2)


# The scripted endpoint itself.


def test_what_is_above_the_scripted_limit_waits_or_is_refused() -> None:
    async def go(queues: bool) -> dict[str, Any]:
        async with serving(Script(latency_s=0.05, concurrent=2, queues=queues)) as server:
            endpoint = Endpoint(EndpointConfig(**{**QUICK, "url": server.url, "attempts": 1}))
            await asyncio.gather(*(endpoint.complete(ASKED, seed=seed) for seed in range(6)), return_exceptions=True)
            await endpoint.close()
            return server.stats()

    counts = {"requests": 6, "distinct": 6, "running": 0, "peak": 2}
    assert asyncio.run(go(True)) == {**counts, "outcomes": {"200": 6}}
    assert asyncio.run(go(False)) == {**counts, "outcomes": {"200": 2, "429": 4}}


def test_an_endpoint_that_is_killed_and_started_again_goes_on_and_its_log_tells_all(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"

    async def asking(process: EndpointProcess) -> Sequence[Completion]:
        config = EndpointConfig(**{**QUICK, "url": process.url, "attempts": 1000, "max_pause_s": 0.1, "pause_s": 0.1})
        endpoint = Endpoint(config)
        both = asyncio.gather(*(endpoint.complete(ASKED, seed=seed) for seed in (1, 2)))
        await asyncio.to_thread(wait_for_log, log, 2)
        process.kill()
        await asyncio.to_thread(process.start)
        completions = await both
        await endpoint.close()
        async with aiohttp.ClientSession() as session, session.get(process.url.replace("/v1", "/log")) as told:
            assert [seen["id"] for seen in await told.json()] == [seen.id for seen in read_log(log)[2:]]
        return completions

    with EndpointProcess("--latency", "0.5", "--concurrent", "4", "--log", str(log)) as process:
        texts = [completion.text for completion in asyncio.run(asking(process))]
    assert texts == ["seed 1, 2 messages: Who ?", "seed 2, 2 messages: Who ?"]
    seen = read_log(log)
    expected = {request_id({"model": "m", "messages": ASKED, "seed": seed, "max_tokens": 4096}) for seed in (1, 2)}
    assert {one.id for one in seen[:2]} == {one.id for one in seen[2:]} == expected
    assert [(one.outcome, one.finished is None) for one in seen] == [("", True)] * 2 + [("200", False)] * 2
    assert all(one.arrived <= time.time() for one in seen)
    assert len({one.process for one in seen}) == 2
