"""The policy behind vLLM's handlers of the protocols of OpenAI and Anthropic, in a process without an engine.

    request -> handler -> render -> generate -> Session.ask -> an engine of the pool
                          |
                          a reply of the policy that comes back is replaced by its recorded tokens

A chat template does not write a reply as it was sampled: it drops thoughts, and writes the arguments of calls its own
way. So a prompt that continues a recorded call is made of that call's tokens and of what the template writes behind the
reply; only that is tokenized.
"""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.gateway.session import OutOfBudget, Request, as_tokens, tools_of
from actors.rollout.config import EngineConfig
from actors.rollout.device import arguments, engine_args, on_cpu
from actors.serving.plain import PlainModel
from coa.agent.codec import Codec
from coa.agent.programs.conversation import Conversation
from coa.agent.programs.tree import Call
from coa.errors import UserError
from coa.json_object import Json, JsonView
from coa.serving.escaping import Escaping
from coa.serving.faults import invalid
from coa.types import Tokens

if TYPE_CHECKING:
    import vllm

CURRENT: ContextVar[Request] = ContextVar("request of a program")
"""The request whose handler runs."""
REPLY = "qReplyThatWasRecordedq"
"""Stands in the place of a reply while the template is rendered."""
ASSISTANT = "assistant"


class RecordedPolicy:
    """The part of vLLM's EngineClient that its handlers use; what is generated comes from the session's pool."""

    errored = False

    def __init__(self, model_dir: Path, config: EngineConfig, *, max_tokens: int) -> None:
        """max_tokens: maximum length of a context."""
        from vllm.renderers import renderer_from_config
        from vllm.v1.engine.input_processor import InputProcessor

        cpu = on_cpu()
        chosen = arguments(config, cpu=cpu, max_tokens=max_tokens, gpus=0)
        self.vllm_config = engine_args({"model": str(model_dir), **chosen}, cpu=cpu).create_engine_config()
        self.model_config = self.vllm_config.model_config
        self.renderer = renderer_from_config(self.vllm_config)
        self.input_processor = InputProcessor(self.vllm_config, self.renderer)
        self._tokenizer: Any = self.renderer.get_tokenizer()

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Every request is admitted: it waits for a place in the pool's queue."""

    async def is_tracing_enabled(self) -> bool:
        return False

    def generate(
        self, prompt: Any, sampling_params: "vllm.SamplingParams", request_id: str, **rest: object
    ) -> "AsyncGenerator[vllm.RequestOutput]":
        return self._generate(CURRENT.get(), as_tokens(prompt["prompt_token_ids"]), sampling_params, request_id)

    async def _generate(
        self, request: Request, prompt: Tokens, asked: "vllm.SamplingParams", name: str
    ) -> "AsyncGenerator[vllm.RequestOutput]":
        from vllm.outputs import CompletionOutput, RequestOutput

        if asked.n != 1 or asked.logprobs is not None or asked.prompt_logprobs is not None:
            raise invalid("this gateway gives one choice and no log-probs")

        def decode(ids: list[int]) -> str:
            return self._tokenizer.decode(ids, skip_special_tokens=asked.skip_special_tokens)

        try:
            said, text = await request.session.ask(request, prompt, asked, decode)
            ids, reason = said.token_ids.tolist(), "stop" if said.ended else "length"
        except OutOfBudget:
            ids, text, reason = [], "", "stop"
        output = CompletionOutput(
            index=0, text=text, token_ids=ids, cumulative_logprob=None, logprobs=None, finish_reason=reason
        )
        yield RequestOutput(
            request_id=name,
            prompt=None,
            prompt_token_ids=prompt.tolist(),
            prompt_logprobs=None,
            outputs=[output],
            finished=True,
        )


async def recorded_model(
    model_dir: Path, config: EngineConfig, codec: Codec, *, name: str, tool_parser: str, max_tokens: int
) -> PlainModel:
    """vLLM's handlers on a policy whose turns are recorded. name: the model's, in requests."""
    policy: Any = RecordedPolicy(model_dir, config, max_tokens=max_tokens)
    escaping = Escaping(codec.untrusted)
    model = await PlainModel.of(policy, str(model_dir), name, escaping, tool_parser, strict=False)
    model.renderer.preprocess_chat = _Rendering(model.renderer, escaping).preprocess_chat
    return model


class _Rendering:
    """Renders the prompts of requests, with recorded replies as they were sampled. renderer: vLLM's OnlineRenderer."""

    def __init__(self, renderer: Any, escaping: Escaping) -> None:
        self._renderer, self._escaping = renderer, escaping
        self._preprocess = renderer.preprocess_chat

    async def preprocess_chat(
        self,
        request: Any,
        messages: list[Any],
        default_template: str | None,
        default_template_content_format: Any,
        default_template_kwargs: dict[str, Any] | None,
        tool_dicts: list[Json] | None = None,
        parser: Any = None,
        **rest: object,
    ) -> Any:
        plain = [_json(message) for message in messages]
        template, form, options = default_template, default_template_content_format, default_template_kwargs
        conversation, [prompt] = await self._preprocess(
            request, plain, template, form, options, tool_dicts, parser, **rest
        )
        current = CURRENT.get()
        asked = current.conversation = Conversation.of(plain, tool_dicts)
        current.messages, current.tools = plain, [_given(tool) for tool in tool_dicts or ()]
        current.reply_of = lambda said, text: self._reply(request, parser, said.token_ids, text)
        params = request.build_chat_params(template, form).with_defaults(
            {**(options or {}), "tools": tool_dicts, "tokenize": False}
        )
        current.turn_of = lambda reply, stops: self._turn(request, parser, plain, reply, stops, params)
        if (found := current.session.conversations.continued(asked)) is not None:
            place, call = found
            replaced = [*plain[:place], {"role": ASSISTANT, "content": REPLY}, *plain[place + 1 :]]
            if (behind := await self._text_behind_reply(replaced, params)) is not None:
                prompt["prompt_token_ids"] = self._continued(call, behind)
        return conversation, [prompt]

    async def _text_behind_reply(self, messages: list[Json], params: Any) -> str | None:
        """What the template writes behind REPLY; None if it refuses these messages, or writes it otherwise."""
        from jinja2 import TemplateError

        try:
            _, rendered = await self._renderer.renderer.render_messages_async(messages, params)
        except (ValueError, TypeError, TemplateError):
            return None
        _, found, behind = str(rendered.get("prompt", "")).partition(REPLY)
        return behind if found and REPLY not in behind else None

    async def _turn(
        self, request: Any, parser: Any, messages: list[Json], reply: Json, stops: Sequence[str], params: Any
    ) -> Tokens:
        """The tokens with which the policy would have said a reply to the messages, the one that ends it included."""
        whole = replace(params, chat_template_kwargs={**params.chat_template_kwargs, "add_generation_prompt": False})
        _, asked = await self._renderer.renderer.render_messages_async(messages, params)
        [escaped] = self._escaping.request({"messages": [reply]})["messages"]
        _, rendered = await self._renderer.renderer.render_messages_async([*messages, escaped], whole)
        prompt, text = str(asked["prompt"]), str(rendered["prompt"])
        tokenizer = self._renderer.renderer.get_tokenizer()
        special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
        tokens = self._encoded(text.removeprefix(prompt))
        last = max((place for place, token in enumerate(tokens) if token in special), default=None)
        if not text.startswith(prompt) or last is None:
            raise UserError(
                "the model's chat template does not write a reply behind its prompt and end it with a special token, "
                "so that replies of a teacher can't be trained"
            )
        turn = as_tokens(tokens[: last + 1])
        said = tokenizer.decode(tokens[:last], skip_special_tokens=getattr(request, "skip_special_tokens", True))
        if tools_of(self._reply(request, parser, turn, said)) != tools_of(reply):
            raise UserError(
                f"agent.program.tool_parser does not read the calls of tools as the model's chat template writes them: "
                f"{said!r}"
            )
        ends = (
            place for place in range(1, last + 1) if any(stop in tokenizer.decode(tokens[:place]) for stop in stops)
        )
        return turn[: next(ends, last + 1)] if any(stop in said for stop in stops) else turn

    def _encoded(self, text: str) -> list[int]:
        """The tokens of a text with marks in it."""
        return self._renderer.renderer.get_tokenizer().backend_tokenizer.encode(text, add_special_tokens=False).ids

    def _continued(self, call: Call, behind: str) -> list[int]:
        tokens = self._encoded(behind)
        whole = call.whole.tolist()
        # The policy has ended its reply with the token with which the template ends it.
        return [*whole, *(tokens[1:] if call.said.ended and tokens[:1] == whole[-1:] else tokens)]

    def _reply(self, request: Any, parser: Any, turn: Tokens, text: str) -> JsonView:
        """The message that the handler makes of a turn."""
        if parser is None:
            message: Json = {"role": ASSISTANT, "content": text}
        else:
            reading = parser(self._renderer.renderer.get_tokenizer(), getattr(request, "tools", None))
            _, content, calls = reading.parse(
                text, request, enable_auto_tools=True, model_output_token_ids=turn.tolist()
            )
            functions = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls or ()]
            message = {"role": ASSISTANT, "content": content or "", "tool_calls": functions}
        [escaped] = self._escaping.request({"messages": [message]})["messages"]
        return escaped


def _given(value: Any) -> Any:
    """A JSON value without the fields that are not set."""
    match value:
        case dict():
            return {name: _given(one) for name, one in value.items() if one is not None}
        case list():
            return [_given(one) for one in value]
        case _:
            return value


def _json(value: Any) -> Any:
    """A message as plain JSON values: handlers give dictionaries, models of pydantic, and iterators of them."""
    match value:
        case str() | int() | float() | None:
            return value
        case _ if hasattr(value, "model_dump"):
            return value.model_dump(mode="json", exclude_none=True)
        case Mapping():
            return {str(name): _json(one) for name, one in value.items()}
        case _:
            return [_json(one) for one in value]
