"""Parameters of requests: each that a published schema or vLLM has is honoured, has no effect, or is refused."""

from typing import Any

import pytest

from coa.serving.faults import ApiError
from coa.serving.parameters import (
    AGENT,
    EXTRA_OF_RESPONSES,
    MODEL,
    Effect,
    Protocol,
    check_agent,
    check_model,
)
from coa.serving.protocols.schemas import CreateChat, CreateCompletion, CreateMessage, CreateResponse
from scripts.parameters import PAGE, of_vllm, published, with_table

OF_OPERATORS = frozenset(
    {
        "cache_salt",
        "chat_template",
        "documents",
        "ec_transfer_params",
        "kv_transfer_params",
        "media_io_kwargs",
        "mm_payload",
        "mm_processor_kwargs",
        "priority",
        "prompt_embeds",
        "request_id",
        "return_mm_kwargs",
        "routed_experts_prompt_start",
        "session_id",
        "vllm_xargs",
        "watermarking",
    }
)
"""Parameters of vLLM with which a client could overtake others, read their cache, or reach into the engine."""

SCHEMAS = {
    Protocol.chat: CreateChat,
    Protocol.completions: CreateCompletion,
    Protocol.messages: CreateMessage,
    Protocol.responses: CreateResponse,
}


@pytest.mark.parametrize("protocol", Protocol)
def test_what_the_agent_honours_is_what_its_schema_reads(protocol: Protocol) -> None:
    read = set(SCHEMAS[protocol].model_fields)
    assert AGENT[protocol].honoured <= read
    # Of responses, these are read for the model alone.
    assert read - AGENT[protocol].honoured <= {"tools", "text"}


@pytest.mark.parametrize("protocol", [Protocol.chat, Protocol.completions, Protocol.messages])
def test_what_the_model_alone_honours_is_what_vllm_reads_but_for_what_is_the_operators(protocol: Protocol) -> None:
    assert MODEL[protocol].honoured <= of_vllm(protocol)
    left_out = of_vllm(protocol) - MODEL[protocol].honoured - MODEL[protocol].no_effect
    assert left_out <= OF_OPERATORS | {"suffix"}, "vLLM refuses a suffix itself"
    assert not OF_OPERATORS & MODEL[protocol].honoured


def test_what_responses_of_the_model_alone_honour_is_of_responses_or_of_chat() -> None:
    known = published(Protocol.responses) | of_vllm(Protocol.chat)
    assert MODEL[Protocol.responses].honoured <= known
    assert MODEL[Protocol.responses].honoured >= set(EXTRA_OF_RESPONSES)


@pytest.mark.parametrize("protocol", Protocol)
def test_what_has_no_effect_is_in_a_published_schema(protocol: Protocol) -> None:
    everywhere = published(Protocol.chat) | published(protocol)
    for rules in (AGENT[protocol], MODEL[protocol]):
        assert rules.no_effect <= everywhere
        assert not rules.no_effect & rules.honoured


@pytest.mark.parametrize("protocol", Protocol)
@pytest.mark.parametrize("check", [check_agent, check_model])
def test_every_other_parameter_is_refused_by_name_and_one_that_nobody_knows(protocol: Protocol, check: Any) -> None:
    rules = AGENT if check is check_agent else MODEL
    known = {*published(protocol), *of_vllm(protocol), "nobodys"}
    refused = {name for name in known if rules[protocol].effect(name) is Effect.refused}
    assert "nobodys" in refused
    for name in known:
        if name in refused:
            with pytest.raises(ApiError, match=rf"^{name}\b") as caught:
                check(protocol, {"model": "afm", name: "something"})
            assert (caught.value.status, caught.value.param) == (400, name)
            check(protocol, {name: None})
        else:
            check(protocol, {name: "something"})


ASKS_NOTHING: list[tuple[str, Any]] = [
    ("tools", []),
    ("tool_choice", "auto"),
    ("tool_choice", "none"),
    ("tool_choice", {"type": "auto"}),
    ("response_format", {"type": "text"}),
    ("logprobs", False),
    ("top_logprobs", 0),
    ("presence_penalty", 0),
    ("frequency_penalty", 0.0),
    ("repetition_penalty", 1.0),
    ("top_k", -1),
    ("min_p", 0.0),
    ("truncation", "disabled"),
    ("modalities", ["text"]),
    ("verbosity", "medium"),
    ("text", {"format": {"type": "text"}, "verbosity": "medium"}),
    ("reasoning", {"effort": None, "summary": None}),
    ("include", ["reasoning.encrypted_content"]),
    ("thinking", {"type": "enabled", "budget_tokens": 1024}),
    ("output_config", {"format": {"type": "text"}}),
    ("store", False),
    ("stream_options", {"include_obfuscation": False}),
]
ASKS: list[tuple[str, Any]] = [
    ("tools", [{"type": "function"}]),
    ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "name": "f"}),
    ("response_format", {"type": "json_object"}),
    ("logprobs", True),
    ("logprobs", 0),
    ("top_logprobs", 2),
    ("presence_penalty", 0.1),
    ("repetition_penalty", 1.1),
    ("top_k", 1),
    ("min_p", 0.1),
    ("truncation", "auto"),
    ("modalities", ["text", "audio"]),
    ("verbosity", "low"),
    ("text", {"format": {"type": "json_schema", "schema": {}}}),
    ("text", {"format": {"type": "text"}, "verbosity": "high"}),
    ("reasoning", {"effort": "high"}),
    ("include", ["message.output_text.logprobs"]),
    ("thinking", {"type": "disabled"}),
    ("output_config", {"format": {"type": "text"}, "effort": "low"}),
    ("conversation", "conv_1"),
    ("structured_outputs", {"regex": "a"}),
]


@pytest.mark.parametrize(("name", "value"), ASKS_NOTHING, ids=str)
def test_a_value_that_asks_for_nothing_is_accepted(name: str, value: Any) -> None:
    for protocol in Protocol:
        check_agent(protocol, {name: value})


@pytest.mark.parametrize(("name", "value"), ASKS, ids=str)
def test_a_value_that_asks_for_what_the_agent_does_not_do_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ApiError):
        check_agent(Protocol.responses, {name: value})


def test_a_parameter_that_the_model_alone_honours_says_so() -> None:
    with pytest.raises(ApiError, match="the model alone, MODEL:plain, heeds it"):
        check_agent(Protocol.chat, {"top_k": 5})
    with pytest.raises(ApiError, match="not supported"):
        check_agent(Protocol.chat, {"priority": 5})


def test_the_page_has_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page) == page, "python -m scripts.parameters writes it"
