"""Replies in the forms that servers send: text in parts, no text, counts of tokens; the field that a refusal names."""

import asyncio
import json
import math
from typing import Any

import pytest
from aiohttp import web

from coa.errors import EmptyCompletion, RequestRefused
from coa.http.client import NoReply, Reply
from coa.llm.client import Endpoint, EndpointConfig
from coa.llm.completions import Completion, Describer, Rejected, read, refused_field
from coa.usage import Usage
from tests.support.asking import ASKED, QUICK
from tests.support.servers import serving

TEXT = {"type": "text", "text": "It is 7."}
HM = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}


def completed(message: dict[str, Any], finish: str | None = "stop", usage: Any = None) -> Completion:
    body = {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}
    return read(Reply(200, "text/plain", json.dumps(body).encode(), "", ""), Describer("u"))


@pytest.mark.parametrize(
    "content",
    [
        "It is 7.",
        [TEXT],
        [HM, TEXT],
        [
            {"type": "reasoning", "text": "hm"},
            {"type": "output_text", "text": "It "},
            {"type": "text", "text": "is 7."},
        ],
        ["It is ", "7."],
        TEXT,
        [TEXT, None, 3, {"type": "text", "text": None}, {"type": "image_url", "image_url": {"url": "x"}}],
    ],
)
def test_the_text_of_a_reply_is_read_from_all_its_parts(content: Any) -> None:
    assert completed({"role": "assistant", "content": content}) == Completion("It is 7.", "stop", Usage())


def test_a_reply_of_the_older_protocol_has_its_text_in_its_choice() -> None:
    body = b'{"choices": [{"text": "It is 7.", "finish_reason": "stop"}]}'
    for start in (b"", b"\xef\xbb\xbf", b"\n\n"):
        assert read(Reply(200, "", start + body, "", ""), Describer("u")).text == "It is 7."


@pytest.mark.parametrize(
    ("message", "finish", "instead"),
    [
        ({"content": None}, "stop", ""),
        ({}, None, ""),
        ({"content": []}, "stop", ""),
        (
            {"tool_calls": [{"function": {"name": "search", "arguments": "{}"}}]},
            "tool_calls",
            "it calls the tool search",
        ),
        ({"content": "", "function_call": {"name": "search"}}, "function_call", "it calls the tool search"),
        ({"tool_calls": [], "refusal": "I can't."}, "stop", "it refuses: I can't."),
        ({"content": [{"type": "refusal", "refusal": "I can't."}]}, "stop", "it refuses: I can't."),
        ({"content": " ", "reasoning_content": "Let me see."}, "stop", "it has thoughts alone: Let me see."),
        ({"content": None, "reasoning": "Let me see."}, "stop", "it has thoughts alone: Let me see."),
        ({"content": [HM]}, "stop", "it has thoughts alone"),
        ({"content": ""}, "content_filter", "its finish reason is content_filter"),
        (
            {"content": None, "reasoning": "Let"},
            "length",
            "its tokens (max_tokens) were used up before its first word",
        ),
    ],
)
def test_a_reply_without_text_says_what_it_has_instead(message: dict[str, Any], finish: str, instead: str) -> None:
    assert completed(message, finish).instead == instead


def test_calls_of_tools_are_kept_as_they_came() -> None:
    calls = [{"id": "1", "function": {"name": "search", "arguments": "{}"}}]
    assert completed({"content": "so", "tool_calls": calls}, "tool_calls").tool_calls == tuple(calls)
    for odd in (None, {}, "search", 7, ["search"]):
        assert completed({"content": "so", "tool_calls": odd}, "stop").tool_calls == ()


@pytest.mark.parametrize(
    ("usage", "prompt", "completion"),
    [
        ({"prompt_tokens": "12", "completion_tokens": 3.0}, 12, 3),
        ({"input_tokens": 12, "output_tokens": 3}, 12, 3),
        ({"prompt_tokens": "n/a", "completion_tokens": None, "total_tokens": "many"}, 0, 0),
        ({"prompt_tokens": -1, "completion_tokens": math.inf}, 0, 0),
        ({"prompt_tokens": math.nan, "completion_tokens": 1e300}, 0, 0),
        ({"prompt_tokens": {"text": 12}, "completion_tokens": [3], "total_tokens": 15}, 0, 15),
        ([{"prompt_tokens": 12}], 0, 0),
        ("12 tokens", 0, 0),
        (7, 0, 0),
    ],
)
def test_tokens_that_can_not_be_read_are_not_counted_and_cost_no_reply(
    usage: Any, prompt: int, completion: int
) -> None:
    assert completed({"content": "a"}, usage=usage).usage == Usage(0, prompt, completion)


@pytest.mark.parametrize(
    ("body", "begins"),
    [
        (b"", "an empty reply"),
        (b"It is 7.", "It is 7."),
        (b"<html>\n<title>Sign in</title>", "<html> <title>Sign in</title>"),
        (b'{"id": 1}', '{"id": 1}'),
        (b'data: {"choices": []}', 'data: {"choices": []}'),
        (b"[]", "[]"),
        (b"x" * 999, "x" * 300),
    ],
)
def test_what_is_no_completion_is_shown_from_its_beginning(body: bytes, begins: str) -> None:
    with pytest.raises(NoReply, match=r"^not a chat completion: ") as caught:
        read(Reply(200, "text/html", body, "", ""), Describer("u"))
    assert str(caught.value) == f"not a chat completion: {begins}"


MISTRALS = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 7}]
SENT = ("model", "messages", "seed", "stop", "temperature", "top_p", "max_tokens", "response_format", "n")


@pytest.mark.parametrize(
    ("refusal", "field"),
    [
        ({"error": {"message": "Unsupported parameter", "param": "max_tokens"}}, "max_tokens"),
        ({"error": {"message": "Unsupported value: 'temperature' does not support 0", "param": None}}, "temperature"),
        ({"error": {"message": "Use 'max_completion_tokens' instead of 'max_tokens'."}}, "max_tokens"),
        ({"error": {"message": "Unrecognized request argument supplied: seed"}}, "seed"),
        ({"error": {"message": "Unrecognized request argument supplied: stop"}}, "stop"),
        ({"error": {"message": "property 'n' is unsupported with this model"}}, "n"),
        ([{"error": {"code": 400, "message": 'Unknown name "seed": Cannot find field.'}}], "seed"),
        ({"object": "error", "message": {"detail": MISTRALS}}, "seed"),
        ({"detail": MISTRALS}, "seed"),
        (
            {"object": "error", "message": "[{'loc': ('body', 'top_p'), 'msg': 'Extra inputs are not permitted'}]"},
            "top_p",
        ),
        ("temperature: Extra inputs are not permitted", "temperature"),
        ({"error": {"message": "This model does not stop, and its messages are too many", "param": "messages"}}, ""),
        ({"error": {"message": "the model `m` does not exist", "param": "model"}}, ""),
        ({"error": {"message": "the response was filtered by the content policy"}}, ""),
        ("[" * 99_999, ""),
    ],
)
def test_the_field_that_a_refusal_names_is_found(refusal: Any, field: str) -> None:
    body = refusal if isinstance(refusal, str) else json.dumps(refusal)
    assert refused_field(body, SENT) == field


USAGE = {"prompt_tokens": 5, "completion_tokens": 1}


def asked(
    refuses: dict[str, str], *seeds: int, usage: Any = USAGE, **config: Any
) -> tuple[list[Any], list[dict[str, Any]], list[str]]:
    """The texts or errors of requests with these seeds to a model that refuses fields, with these messages; the bodies
    that came; and what the endpoint tells the user."""
    bodies: list[dict[str, Any]] = []

    async def handle(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        for name, message in refuses.items():
            if name in bodies[-1]:
                return web.json_response({"error": {"message": message, "param": name}}, status=400)
        return web.json_response({"choices": [{"message": {"content": "7"}}], "usage": usage})

    async def go() -> tuple[list[Any], list[dict[str, Any]], list[str]]:
        async with serving(handle) as url:
            endpoint = Endpoint(EndpointConfig(url=f"{url}/v1", **{**QUICK, **config}), "models.big.endpoint")
            ended: list[Any] = []
            for seed in seeds:
                try:
                    completion = await endpoint.complete(ASKED, seed=seed, temperature=0.0)
                    ended.append((completion.text, completion.usage.requests))
                except (RequestRefused, EmptyCompletion, Rejected) as error:
                    ended.append(error)
            await endpoint.close()
            return ended, bodies, endpoint.notices

    return asyncio.run(go())


def test_a_field_with_another_name_is_renamed_for_all_further_requests_and_told_of_once() -> None:
    refuses = {"max_tokens": "Unsupported parameter: 'max_tokens'.", "seed": "Extra inputs are not permitted"}
    ended, bodies, notices = asked(refuses, 1, 2)
    assert ended == [("7", 3), ("7", 1)]
    assert [sorted(set(body) - {"model", "messages", "temperature"}) for body in bodies] == [
        ["max_tokens", "seed"],
        ["max_completion_tokens", "seed"],
        ["max_completion_tokens", "random_seed"],
        ["max_completion_tokens", "random_seed"],
    ]
    assert bodies[-1]["random_seed"] == 2
    assert notices == [
        "it refuses max_tokens and is sent max_completion_tokens in its place",
        "it refuses seed and is sent random_seed in its place",
    ]


def test_an_endpoint_that_counts_no_tokens_is_told_of_once() -> None:
    _, _, notices = asked({}, 1, 2, usage=None)
    assert notices == ["its replies say nothing of tokens, which count as 0: a budget of tokens does not hold"]


def test_a_value_that_is_refused_is_no_reason_for_another_name() -> None:
    refuses = {"max_tokens": "max_tokens is too large: 4096. This model supports at most 1024 completion tokens."}
    [refused], bodies, notices = asked(refuses, 1)
    assert (len(bodies), notices) == (1, [])
    assert type(refused) is RequestRefused
    assert str(refused).endswith(
        " tokens.; models.big.endpoint.extra.max_tokens=null leaves this field out, another value replaces it"
    )


def test_a_field_that_is_refused_under_both_names_is_named_as_its_setting_is() -> None:
    *_, last = asked({"seed": "unknown field", "random_seed": "unknown field"}, 1, 2, 3)[0]
    assert type(last) is Rejected
    assert str(last).endswith(
        "unknown field; models.big.endpoint.extra.seed=null leaves this field out, another value replaces it"
    )


def test_settings_leave_fields_out_rename_and_add_them() -> None:
    extra = {"temperature": None, "seed": None, "max_tokens": None, "max_completion_tokens": 99, "effort": "low"}
    ended, [body], _ = asked({"seed": "no", "temperature": "no", "max_tokens": "no"}, 1, extra=extra)
    assert ended == [("7", 1)]
    assert body == {"model": "m", "messages": ASKED, "max_completion_tokens": 99, "effort": "low"}
