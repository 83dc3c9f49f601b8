"""What an endpoint refuses: what a user must put right, what is one request's fault, and what errors say."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from coa.errors import (
    ContextTooLong,
    EmptyCompletion,
    ReplyCutOff,
    RequestRefused,
    UserError,
)
from coa.http.client import Reply
from coa.llm.client import EMPTIES, Endpoint, EndpointConfig, check_endpoint
from coa.llm.completions import Describer, Rejected, error_message, read
from coa.seeds import derive
from coa.usage import Usage
from tests.support.asking import ASKED, PROMPT, QUICK, WHOLE, ask, asked
from tests.support.endpoints import CONTEXT, Script, serving
from tests.support.servers import raw, response


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
def test_what_no_further_attempt_can_help_is_raised_at_once(fault: str, kind: type[Exception], what: str) -> None:
    answer, counts, outcomes = asked(f"*={fault}")
    assert type(answer) is kind
    assert str(answer).endswith(f"/chat/completions: {what}")
    assert (len(outcomes), counts) == (1, {"attempts": 1})


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
        read(Reply(400, "text/plain", words.encode(), "", ""), Describer("u"))


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


def test_what_empty_replies_took_is_counted() -> None:
    answer, counts, _ = asked("*=empty")
    assert type(answer) is EmptyCompletion
    assert answer.usage == Usage(EMPTIES, EMPTIES * PROMPT, counts["completion tokens"])
    assert pickle.loads(pickle.dumps(answer)).usage == answer.usage


def test_a_key_is_sent_and_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert error_message(body) == words


def test_what_a_server_said_is_one_line_of_bounded_length() -> None:
    assert Describer("u", "k", shows=11)("what", "one\n two k\t three four") == "u: what: one two ***"
    assert Describer("u", shows=0)("status 400", "anything") == "u: status 400"


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
