"""Converts requests of each protocol to requests to the agent."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import ValidationError

from coa.agent.episode import AgentConfig, Limits
from coa.json_object import Json
from coa.serving.detail import Detail
from coa.serving.faults import ApiError, invalid, invalid_form
from coa.serving.parameters import Protocol, check_agent
from coa.serving.protocols.schemas import (
    AgentOptions,
    CountTokens,
    CreateChat,
    CreateCompletion,
    CreateMessage,
    CreateResponse,
    Message,
    Part,
)

PLAIN = "plain"
"""`MODEL:plain` is the model alone; `MODEL:PROFILE` an agent of another profile."""
TEXT_PARTS = {"text", "input_text", "output_text"}
OF_THE_CHAIN = re.compile(r"(redacted_)?thinking|reasoning|(server|mcp)_tool_use|\w+_tool_result")
"""Parts of a message in which a client sends the agent's chain back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRequest:
    """Episodes to play for a client, and the answers that it requests."""

    question: str
    profile: str
    temperature: float
    top_p: float
    seed: int | None
    choices: int
    """Number of answers that are returned."""
    samples: int
    """Number of episodes per answer."""
    stop: tuple[str, ...] = ()
    """Sequences that end the answer."""
    detail: Detail = Detail.standard
    select: str
    streamed: bool
    """Whether events are sent to the client while the episode is played."""
    agent: AgentConfig
    """Configuration with the request's own limits if they are lower than the server's."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target that a model's name refers to."""

    model: str
    plain: bool
    profile: str


def target_of(name: str, served: str, profile: str, profiles: Collection[str]) -> Target:
    """`served` is the model's own name, `profile` its default profile, `profiles` are the profiles that may be named.
    Raises ApiError for an unknown name."""
    base, _, variant = name.partition(":")
    if base == served and not variant:
        return Target(name, False, profile)
    if base == served and (variant == PLAIN or variant in profiles):
        return Target(name, variant == PLAIN, profile if variant == PLAIN else variant)
    raise ApiError(
        404, "model_not_found", f"no model {name!r}; this server has {served!r} and {served + ':plain'!r}", "model"
    )


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for fields that a request omits."""

    agent: AgentConfig
    temperature: float = 0.0
    top_p: float = 1.0


def of_chat(body: CreateChat, profile: str, defaults: Defaults) -> AgentRequest:
    check_agent(Protocol.chat, explicit_fields(body))
    return _request(
        question_of(_read(body.messages)),
        body,
        profile,
        defaults,
        seed=body.seed,
        stop=body.stop,
        choices=body.n or 1,
        max_tokens=body.max_completion_tokens or body.max_tokens,
    )


def of_completion(body: CreateCompletion, profile: str, defaults: Defaults) -> AgentRequest:
    check_agent(Protocol.completions, explicit_fields(body))
    if not isinstance(body.prompt, str):
        raise invalid("the agent takes one prompt, as text", "prompt")
    return _request(
        body.prompt,
        body,
        profile,
        defaults,
        seed=body.seed,
        stop=body.stop,
        choices=body.n or 1,
        max_tokens=body.max_tokens,
    )


def of_message(body: CreateMessage, profile: str, defaults: Defaults) -> AgentRequest:
    return _request(
        question_of_message(body),
        body,
        profile,
        defaults,
        stop=body.stop_sequences,
        max_tokens=body.max_tokens,
        detail=body.coa.detail,
    )


def question_of_message(body: CountTokens) -> str:
    check_agent(Protocol.messages, explicit_fields(body))
    system = [("system", _text(body.system, "system"))] if body.system else []
    return question_of([*system, *_read(body.messages)])


def of_response(body: CreateResponse, before: Sequence[Message], profile: str, defaults: Defaults) -> AgentRequest:
    """before: the conversation of `previous_response_id`."""
    check_agent(Protocol.responses, explicit_fields(body))
    instructions = [("system", body.instructions)] if body.instructions else []
    said = [*before, *messages_of(body)]
    options = (
        body.coa if body.max_tool_calls is None else body.coa.model_copy(update={"max_tool_calls": body.max_tool_calls})
    )
    return _request(
        question_of([*instructions, *_read(said)]),
        body.model_copy(update={"coa": options}),
        profile,
        defaults,
        max_tokens=body.max_output_tokens,
        detail=body.coa.detail,
    )


def messages_of(body: CreateResponse) -> list[Message]:
    """The input's messages; the items of tools in a conversation that is sent back are left out."""
    if isinstance(body.input, str):
        return [Message(role="user", content=body.input)]
    items = [item for item in body.input if item.type == "message"]
    return read_messages(item.model_dump() for item in items)


def read_messages(rows: Iterable[object]) -> list[Message]:
    """Parses messages; raises ApiError for an invalid message."""
    try:
        return [Message.model_validate(row) for row in rows]
    except ValidationError as error:
        raise invalid_form(error) from error


def question_of(said: Sequence[tuple[str, str]]) -> str:
    """One question for the agent, which does not support conversations: the instructions, the earlier messages, and the
    last message. Raises ApiError if the last message is not the user's."""
    instructions = [text for role, text in said if role in ("system", "developer")]
    turns = [(role, text) for role, text in said if role not in ("system", "developer")]
    if not turns or turns[-1][0] != "user":
        raise invalid("the last message has to be the user's", "messages")
    *before, (_, question) = turns
    if not question.strip():
        raise invalid("the last message is empty", "messages")
    history = [f"{'User' if role == 'user' else 'Assistant'}: {text}" for role, text in before]
    return "\n\n".join(
        [*instructions, *(["The conversation so far:", *history, "The question:"] if before else []), question]
    )


def _read(messages: Iterable[Message]) -> list[tuple[str, str]]:
    return [(message.role, _text(message.content, "messages", own=message.role == "assistant")) for message in messages]


def _text(content: str | list[Part] | None, param: str, *, own: bool = False) -> str:
    """own: whether the message is the agent's; the chain that led to its answer is left out of the conversation."""
    match content:
        case None:
            return ""
        case str():
            return content
        case parts:
            if own:
                parts = [part for part in parts if not OF_THE_CHAIN.fullmatch(part.type)]
            if odd := next((part.type for part in parts if part.type not in TEXT_PARTS), None):
                raise invalid(f"the model reads text only, not {odd!r}", param, "unsupported_content")
            return "\n".join(part.text or "" for part in parts)


def explicit_fields(body: CreateChat | CreateCompletion | CountTokens | CreateResponse) -> Json:
    """The parameters that the client sent, without defaults."""
    return body.model_dump(exclude_unset=True)


def _request(
    question: str,
    body: CreateChat | CreateCompletion | CreateMessage | CreateResponse,
    profile: str,
    defaults: Defaults,
    *,
    seed: int | None = None,
    stop: str | Sequence[str] | None = None,
    choices: int = 1,
    max_tokens: int | None = None,
    detail: Detail = Detail.standard,
) -> AgentRequest:
    options = body.coa
    if (body.stream and choices * options.samples > 1) or choices * options.samples > 64:
        raise invalid("a stream has one choice, and a request at most 64 episodes", "n")
    # Several greedy episodes would be identical.
    usual = defaults.temperature if choices * options.samples == 1 else 1.0
    temperature = usual if body.temperature is None else body.temperature
    return AgentRequest(
        question=question,
        profile=profile,
        temperature=temperature,
        top_p=defaults.top_p if body.top_p is None else body.top_p,
        seed=None if seed == -1 else seed,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        choices=choices,
        samples=options.samples,
        select=options.select,
        detail=detail,
        streamed=bool(body.stream),
        agent=replace(defaults.agent, limits=lowered(defaults.agent.limits, options, max_tokens)),
    )


def lowered(limits: Limits, options: AgentOptions, max_tokens: int | None) -> Limits:
    """The server's limits, or the request's own if they are lower."""
    calls = [each for each in (limits.max_tool_calls, options.max_tool_calls) if each is not None]
    return replace(
        limits,
        max_turns=min(limits.max_turns, options.max_turns or limits.max_turns),
        max_tool_calls=min(calls) if calls else None,
        max_turn_tokens=min(limits.max_turn_tokens, max_tokens or limits.max_turn_tokens),
        # Without this, it would be derived from the lowered limit of a turn, and every tag would be cut short.
        max_tag_tokens=limits.tag_tokens,
        max_seconds=min(limits.max_seconds, options.max_seconds or limits.max_seconds),
    )


def fields_of(
    body: CreateResponse, defaults: Defaults, id: str, now: int, *, plain: bool = False, stores: bool = True
) -> Json:
    """The fields of a response's resource that the request determines. stores: whether the server stores responses."""
    # The model alone uses vLLM's sampling defaults.
    temperature = 1.0 if plain else defaults.temperature
    extra, bare = body.model_extra or {}, {"description": None, "parameters": None, "strict": None}
    return {
        "id": id,
        "created_at": now,
        "model": body.model,
        "previous_response_id": body.previous_response_id,
        "instructions": body.instructions,
        "tools": [{**bare, **tool} for tool in body.tools or ()],
        "tool_choice": extra.get("tool_choice") or "auto",
        "truncation": "disabled",
        "parallel_tool_calls": bool(extra.get("parallel_tool_calls", plain)),
        "text": body.text or {"format": {"type": "text"}},
        "top_p": defaults.top_p if body.top_p is None else body.top_p,
        "presence_penalty": (plain and extra.get("presence_penalty")) or 0.0,
        "frequency_penalty": (plain and extra.get("frequency_penalty")) or 0.0,
        "top_logprobs": 0,
        "temperature": temperature if body.temperature is None else body.temperature,
        "reasoning": None,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "store": stores and body.store is not False,
        "background": bool(body.background),
        "service_tier": "default",
        "metadata": body.metadata or {},
        "safety_identifier": None,
        "prompt_cache_key": None,
    }
