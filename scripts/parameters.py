"""Writes the table of parameters of requests in docs/serving.md: python -m scripts.parameters"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_type_hints

from coa.serving.parameters import AGENT, MODEL, Effect, Protocol

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
BEGIN, END = "<!-- parameters: python -m scripts.parameters -->\n", "<!-- end of parameters -->"
HEAD = "| protocol | honoured by both | by the model alone | by the agent | without effect | refused |\n"


def published(protocol: Protocol) -> frozenset[str]:
    """The parameters in the schema that the protocol's author publishes as types of Python."""
    from anthropic.types import message_create_params as messages
    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    schemas: dict[Protocol, tuple[Any, ...]] = {
        Protocol.chat: (chat.CompletionCreateParamsStreaming,),
        Protocol.completions: (completions.CompletionCreateParamsStreaming,),
        Protocol.messages: (messages.MessageCreateParamsStreaming,),
        Protocol.responses: (responses.ResponseCreateParamsStreaming,),
    }
    return frozenset(name for schema in schemas[protocol] for name in get_type_hints(schema))


def of_vllm(protocol: Protocol) -> frozenset[str]:
    """The parameters that vLLM's handler of the protocol takes; responses are made with that of chat."""
    from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.entrypoints.openai.completion.protocol import CompletionRequest

    handled: dict[Protocol, Any] = {
        Protocol.chat: ChatCompletionRequest,
        Protocol.completions: CompletionRequest,
        Protocol.messages: AnthropicMessagesRequest,
    }
    return frozenset(handled[protocol].model_fields) if protocol in handled else frozenset()


def table() -> str:
    rows = []
    for protocol in Protocol:
        agent, model = AGENT[protocol], MODEL[protocol]
        known = published(protocol) | of_vllm(protocol)
        cells = (
            agent.honoured & model.honoured,
            model.honoured - agent.honoured,
            agent.honoured - model.honoured,
            agent.no_effect | model.no_effect,
            {name for name in known if agent.effect(name) is model.effect(name) is Effect.refused},
        )
        rows.append(f"| `{protocol}` | {' | '.join(map(_listed, cells))} |\n")
    return HEAD + "|---" * 6 + "|\n" + "".join(rows)


def _listed(names: Iterable[str]) -> str:
    return " ".join(f"`{name}`" for name in sorted(names))


def with_table(page: str) -> str:
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + "\n" + table() + "\n" + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
