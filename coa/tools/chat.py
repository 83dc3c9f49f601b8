"""The client of a language model that tools ask; its failures are ToolDown, and its replies are not validated."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from coa.errors import ContextTooLong, EndpointDown, ToolDown, UserError
from coa.http.client import HttpConfig
from coa.json_object import Json
from coa.llm.ask import Message
from coa.llm.client import Endpoint, EndpointConfig
from coa.llm.completions import MALFORMED, Completion


class ChatConfig(Protocol):
    """The settings of a language model that a tool asks."""

    @property
    def url(self) -> str | None: ...

    @property
    def model(self) -> str: ...

    @property
    def key_env(self) -> str | None: ...

    @property
    def timeout_s(self) -> float: ...

    @property
    def extra(self) -> Json: ...


class Chat:
    """Asks a language model for one reply at a time.

    chat = Chat(config, "tools.judge", http, "judge tokens", JudgeDown, shows=200)
    (await chat.ask([{"role": "user", "content": ".."}])).text
    """

    def __init__(
        self, config: ChatConfig, where: str, http: HttpConfig, tokens: str, down: type[ToolDown], *, shows: int
    ) -> None:
        """where: the recipe's key of the configuration; tokens: the name under which the tokens of all calls are
        counted; down: the error for a refusal and for a reply that is no chat completion; shows: maximum characters of
        a refusal's text in that error, since the text may echo the request."""
        endpoint = EndpointConfig(
            url=config.url,
            name=config.model,
            key_env=config.key_env,
            timeout_s=config.timeout_s,
            attempts=http.attempts,
            timeouts=http.timeouts,
            pause_s=http.pause_s,
            max_pause_s=http.max_pause_s,
            concurrent=0,  # the executor limits calls
            max_tokens=None,
            extra=config.extra,
        )
        self._endpoint = Endpoint(endpoint, where, insists=False, shows=shows)
        self.http = self._endpoint.http
        self._tokens, self._down = tokens, down

    async def ask(self, messages: Sequence[Message], **options: Any) -> Completion:
        """The reply, which may have no text; raises ToolDown if the endpoint does not answer."""
        try:
            completion = await self._endpoint.complete(messages, seed=None, **options)
        except EndpointDown as error:
            raise (self._down if error.reason == MALFORMED else ToolDown)(str(error)) from error
        except (UserError, ContextTooLong) as error:
            raise self._down(str(error)) from error
        self.http.counts[self._tokens] += completion.usage.tokens
        return replace(completion, text=completion.text.strip())

    async def close(self) -> None:
        await self._endpoint.close()
