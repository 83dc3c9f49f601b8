"""Which parameters of a request are honoured, by whom, and which are refused: none is ignored silently.

The published schemas of the protocols have more parameters than any server honours, and clients add some of vLLM's. A
parameter is *honoured*; or it has *no effect* on any answer, and is accepted; or it is refused with status 400, except
with a value that asks for nothing. Parameters that no schema has are refused as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from coa.json_object import JsonView
from coa.serving.faults import ApiError, invalid
from coa.serving.limits.constraints import check_constraints

Asks = Callable[[object], bool]
"""Whether a value asks for something that would not be done."""


class Protocol(StrEnum):
    chat = "/v1/chat/completions"
    completions = "/v1/completions"
    messages = "/v1/messages"
    responses = "/v1/responses"


class Effect(StrEnum):
    honoured = "honoured"
    none = "no effect"
    refused = "refused"


@dataclass(frozen=True, slots=True)
class Rules:
    """Parameters that a request of one protocol may set, for the agent or for the model alone."""

    honoured: frozenset[str]
    no_effect: frozenset[str]
    asks: Mapping[str, Asks] = field(default_factory=dict)
    """By the name of a parameter that is refused if its value asks for something; others ask if they are set at all."""

    def effect(self, name: str) -> Effect:
        if name in self.honoured:
            return Effect.honoured
        return Effect.none if name in self.no_effect else Effect.refused

    def refused(self, given: JsonView) -> str | None:
        """The first parameter that is refused."""
        for name, value in given.items():
            if self.effect(name) is Effect.refused and self.asks.get(name, _is_set)(value):
                return name
        return None


def check_agent(protocol: Protocol, given: JsonView) -> None:
    """Raises ApiError if a request to the agent has a parameter that is refused."""
    if (name := AGENT[protocol].refused(given)) is None:
        return
    if MODEL[protocol].effect(name) is Effect.honoured:
        raise invalid(f"{name}: the agent has its own tools and form; the model alone, MODEL:plain, heeds it", name)
    raise _unsupported(name)


def check_model(protocol: Protocol, given: JsonView) -> None:
    """Raises ApiError if a request to the model alone has a parameter that is refused, or too large a constraint."""
    if (name := MODEL[protocol].refused(given)) is not None:
        raise _unsupported(name)
    check_constraints(given)


def _unsupported(name: str) -> ApiError:
    return invalid(
        f"{name} is not supported; docs/serving.md has the parameters that are", name, "unsupported_parameter"
    )


def _is_set(value: object) -> bool:
    return value is not None and value is not False and value not in ("", [], {})


def _beyond(*nothing: object) -> Asks:
    """nothing: values that ask for nothing."""
    return lambda value: _is_set(value) and not any(type(value) is type(one) and value == one for one in nothing)


def _asks_form(value: object) -> bool:
    """Of a format, or of an object with a `format`, and of its `verbosity`."""
    if not isinstance(value, Mapping):
        return _is_set(value)
    rest = {name: one for name, one in value.items() if name not in ("type", "format", "verbosity")}
    plain = value.get("type") in (None, "text") and value.get("verbosity") in (None, "medium")
    return not plain or any(map(_is_set, rest.values())) or _asks_form(value.get("format"))


def _asks_any(value: object) -> bool:
    """Of an object whose fields may all be null."""
    return any(map(_is_set, value.values())) if isinstance(value, Mapping) else _is_set(value)


def _asks_more(value: object) -> bool:
    """Of what a response is to include."""
    return _is_set(value) and (not isinstance(value, list) or any(one not in INCLUDED for one in value))


def _asks_not_to_think(value: object) -> bool:
    return _is_set(value) and (not isinstance(value, Mapping) or value.get("type") not in ("enabled", "adaptive"))


INCLUDED = ("code_interpreter_call.outputs", "file_search_call.results", "reasoning.encrypted_content")
"""Values of `include` that are accepted: results are always there, and reasoning is never encrypted."""
NUMBER_0, NUMBER_1 = _beyond(0, 0.0), _beyond(1, 1.0)
ASKS: Mapping[str, Asks] = {
    "tool_choice": _beyond("auto", "none", {"type": "auto"}, {"type": "none"}),
    "function_call": _beyond("auto", "none"),
    "response_format": _asks_form,
    "text": _asks_form,
    "output_format": _asks_form,
    "output_config": _asks_form,
    "verbosity": _beyond("medium"),
    "truncation": _beyond("disabled"),
    "presence_penalty": NUMBER_0,
    "frequency_penalty": NUMBER_0,
    "repetition_penalty": NUMBER_1,
    "length_penalty": NUMBER_1,
    "top_k": _beyond(0, -1),
    "top_logprobs": _beyond(0),
    "min_p": NUMBER_0,
    "min_tokens": _beyond(0),
    "best_of": _beyond(1),
    "modalities": _beyond(["text"]),
    "include": _asks_more,
    "stream_options": _asks_any,
    "reasoning": _asks_any,
    "thinking": _asks_not_to_think,
    "skip_special_tokens": _beyond(True),
    "spaces_between_special_tokens": _beyond(True),
    "add_special_tokens": _beyond(True),
    "add_generation_prompt": _beyond(True),
    "include_reasoning": _beyond(True),
}

OPENAI_NO_EFFECT = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "user",
    }
)
ANTHROPIC_NO_EFFECT = frozenset({"cache_control", "metadata", "service_tier"})
"""Who asks, and what it costs: neither is known here."""

_SAMPLING = {"seed", "stop", "temperature", "top_p", "n"}
_CHAT = {"model", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens", *_SAMPLING}
_COMPLETIONS = {"model", "prompt", "stream", "stream_options", "max_tokens", *_SAMPLING}
_MESSAGES = {"model", "messages", "system", "stream", "max_tokens", "temperature", "top_p", "stop_sequences"}
_RESPONSES = {
    "model",
    "input",
    "instructions",
    "previous_response_id",
    "stream",
    "store",
    "background",
    "temperature",
    "top_p",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
}

AGENT: Mapping[Protocol, Rules] = {
    Protocol.chat: Rules(frozenset(_CHAT | {"coa"}), OPENAI_NO_EFFECT | {"parallel_tool_calls"}, ASKS),
    Protocol.completions: Rules(frozenset(_COMPLETIONS | {"coa"}), OPENAI_NO_EFFECT, ASKS),
    Protocol.messages: Rules(frozenset(_MESSAGES | {"coa"}), ANTHROPIC_NO_EFFECT, ASKS),
    Protocol.responses: Rules(
        frozenset(_RESPONSES | {"coa"}), (OPENAI_NO_EFFECT - {"metadata"}) | {"parallel_tool_calls"}, ASKS
    ),
}

_VLLM_SAMPLING = {
    "allowed_token_ids",
    "bad_words",
    "frequency_penalty",
    "ignore_eos",
    "include_stop_str_in_output",
    "length_penalty",
    "logit_bias",
    "min_p",
    "min_tokens",
    "presence_penalty",
    "repetition_detection",
    "repetition_penalty",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "stop_token_ids",
    "structured_outputs",
    "thinking_token_budget",
    "top_k",
    "truncate_prompt_tokens",
    "truncation_side",
    "use_beam_search",
}
_VLLM_SHOWN = {
    "add_special_tokens",
    "echo",
    "logprob_token_ids",
    "logprobs",
    "prompt_logprobs",
    "response_format",
    "return_token_ids",
    "return_token_offsets",
    "return_tokens_as_token_ids",
    "stream_interval",
}
_VLLM_CHAT = {
    "add_generation_prompt",
    "chat_template_kwargs",
    "continue_final_message",
    "include_reasoning",
    "parallel_tool_calls",
    "reasoning_effort",
    "return_prompt_text",
    "tool_choice",
    "tools",
    "top_logprobs",
}
MODEL: Mapping[Protocol, Rules] = {
    Protocol.chat: Rules(frozenset(_CHAT | _VLLM_SAMPLING | _VLLM_SHOWN | _VLLM_CHAT), OPENAI_NO_EFFECT, ASKS),
    Protocol.completions: Rules(frozenset(_COMPLETIONS | _VLLM_SAMPLING | _VLLM_SHOWN), OPENAI_NO_EFFECT, ASKS),
    Protocol.messages: Rules(
        frozenset(_MESSAGES | {"tools", "tool_choice", "top_k", "thinking", "output_config", "chat_template_kwargs"}),
        ANTHROPIC_NO_EFFECT,
        ASKS,
    ),
    Protocol.responses: Rules(
        frozenset(
            (_RESPONSES - {"max_tool_calls"})
            | (_VLLM_SAMPLING - {"use_beam_search"})
            | {"seed", "stop", "text", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs"}
        ),
        OPENAI_NO_EFFECT - {"metadata"},
        ASKS,
    ),
}
EXTRA_OF_RESPONSES = tuple(
    sorted((_VLLM_SAMPLING - {"use_beam_search"}) | {"seed", "stop", "chat_template_kwargs", "parallel_tool_calls"})
)
"""Parameters of responses that the model alone takes as chat completions do."""
