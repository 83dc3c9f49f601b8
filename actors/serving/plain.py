"""The model without the agent, through vLLM's handlers of OpenAI's and Anthropic's protocols, on the agent's engine."""

import json
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from coa.json_object import Json
from coa.serving.escaping import Escaping
from coa.serving.faults import ApiError, invalid_form

if TYPE_CHECKING:
    from pydantic import BaseModel
    from starlette.datastructures import State
    from vllm.v1.engine.async_llm import AsyncLLM

R = TypeVar("R", bound="BaseModel")


class PlainModel:
    """Wraps vLLM's handlers: a request's JSON in, and JSON or a stream of server-sent events out.

    If vLLM's core process has died, this process exits too, as with `actors.rollout.adapter`, so that the server's
    front goes on at another replica.
    """

    def __init__(self, llm: "AsyncLLM", state: "State", name: str, escaping: Escaping) -> None:
        """state: application state of vLLM's server."""
        self._llm, self._state, self._name, self._escaping = llm, state, name, escaping

    @classmethod
    async def of(
        cls, llm: "AsyncLLM", model_dir: str, name: str, escaping: Escaping, tool_parser: str, *, strict: bool = True
    ) -> "PlainModel":
        """strict: whether the arguments of tool calls are made to follow their schemas."""
        from starlette.datastructures import State
        from vllm.entrypoints.launchers.api_server.app_state import init_app_state
        from vllm.entrypoints.launchers.cli_args import make_arg_parser
        from vllm.utils.argparse_utils import FlexibleArgumentParser

        words = ["--model", model_dir, "--served-model-name", name, "--enable-auto-tool-choice"]
        words += ["--tool-call-parser", tool_parser, "--tool-strict-level", "parameter" if strict else "auto"]
        args: Any = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
        # The engine started from a temporary generation config, which the handlers would read again for defaults.
        llm.model_config.generation_config = "vllm"
        state = State()
        await init_app_state(llm, state, args, await llm.get_supported_tasks())
        return cls(llm, state, name, escaping)

    @property
    def renderer(self) -> Any:
        """vLLM's OnlineRenderer, which makes the prompts of all handlers."""
        return self._state.online_renderer

    def name_weights(self, fingerprint: str) -> None:
        """Sets the `system_fingerprint` of later answers."""
        for handler in (self._state.openai_serving_chat, self._state.openai_serving_completion):
            handler.system_fingerprint = fingerprint

    async def chat(self, body: Json, salt: str) -> "Json | AsyncIterator[str]":
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        request = self._request(ChatCompletionRequest, body, salt)
        return await self._ask(self._state.openai_serving_chat.create_chat_completion, request)

    async def stream_chat(self, body: Json, salt: str) -> AsyncGenerator[str]:
        """Streams a chat completion; closing the generator ends the request at the engine."""
        answer = await self.chat({**body, "stream": True}, salt)
        assert isinstance(answer, AsyncGenerator)
        return answer

    async def complete(self, body: Json, salt: str) -> "Json | AsyncIterator[str]":
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        request = self._request(CompletionRequest, body, salt)
        return await self._ask(self._state.openai_serving_completion.create_completion, request)

    async def message(self, body: Json, salt: str) -> "Json | AsyncIterator[str]":
        from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest

        request = self._request(AnthropicMessagesRequest, body, salt)
        return await self._ask(self._state.anthropic_serving_messages.create_messages, request)

    async def respond(self, body: Json, salt: str) -> "Json | AsyncIterator[str]":
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest

        request = self._request(ResponsesRequest, body, salt)
        return await self._ask(self._state.openai_serving_responses.create_responses, request)

    async def count_tokens(self, body: Json) -> Json:
        """Number of tokens of a request of the messages protocol."""
        from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest

        request = self._request(AnthropicCountTokensRequest, body, "")
        answer = await self._ask(self._state.anthropic_serving_messages.count_tokens, request)
        assert isinstance(answer, dict)
        return {"input_tokens": answer["input_tokens"]}

    def _request(self, kind: type[R], body: Json, salt: str) -> R:
        """Parses the body as vLLM's request; raises ApiError if it is invalid."""
        fields = {**self._escaping.request(body), "model": self._name}
        if "cache_salt" in kind.model_fields:
            fields["cache_salt"] = salt
        with _translate_errors():
            return kind(**fields)

    async def _ask(self, handler: Callable[[R, None], Awaitable[Any]], request: R) -> "Json | AsyncIterator[str]":
        try:
            with _translate_errors():
                answer = await handler(request, None)
        finally:
            self._end_with_core()
        if isinstance(answer, AsyncGenerator):
            return self._whole(answer)
        if (error := getattr(answer, "error", None)) is not None:
            raise ApiError(getattr(error, "code", None) or 400, "invalid_value", error.message)
        return answer.model_dump(mode="json") if hasattr(answer, "model_dump") else answer

    async def _whole(self, stream: AsyncGenerator[str]) -> AsyncGenerator[str]:
        """The stream, without the event with which vLLM tells of the end of its core."""
        async with aclosing(stream):
            async for text in stream:
                self._end_with_core()
                yield text

    def _end_with_core(self) -> None:
        if self._llm.errored:
            os._exit(1)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Turns vLLM's exceptions into the error that vLLM's server would answer with."""
    from jinja2 import TemplateError
    from pydantic import ValidationError
    from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
    from vllm.exceptions import VLLMError

    # Besides its own types vLLM raises these for an invalid request; create_error_response maps all of them.
    kinds = (VLLMError, ValueError, TypeError, OverflowError, NotImplementedError, TemplateError)
    try:
        yield
    except ValidationError as error:
        raise invalid_form(error) from error
    except kinds as error:
        found = create_error_response(error).error
        too_long = getattr(error, "parameter", None) in ("input_tokens", "input_text")
        code = "server_error" if found.code >= 500 else "context_length_exceeded" if too_long else "invalid_value"
        raise ApiError(found.code, code, found.message, found.param) from error


async def chunks_of(stream: AsyncGenerator[str]) -> AsyncGenerator[Json]:
    """The JSON data of server-sent events. Closing the generator closes the stream."""
    async with aclosing(stream):
        async for text in stream:
            for line in text.split("\n"):
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))
