"""A language model of the teachers: each reply is kept on disk and never requested again.

    request -- in the ledger? -- yes --> the same completion
                     | no
                     +-- under way for another caller? -- yes --> wait for it
                                 | no
                                 +--> endpoint --> ledger --> completion

All roles share one such object, so that the endpoint's limits apply to all roles together. A request is identified by
its content: model, messages, seed and options. A completion is in the ledger before any caller gets it, so a caller or
an actor that dies afterwards does not pay for it a second time. A second ledger keeps the usage of requests that gave
no completion, written before each is sent; it is added to the usage of the final completion or error.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path

from actors.garbage import freeze_gc
from coa.errors import InfrastructureError, UserError
from coa.json_object import JsonView
from coa.llm.client import Endpoint, EndpointConfig
from coa.llm.completions import Completion
from coa.storage.ledger import Ledger
from coa.tools.cache import Memo
from coa.usage import Usage

TROUBLE = 3
"""Minimum number of consecutive failed attempts before `trouble` reports them."""
UNDER_WAY = 100_000
"""Maximum number of requests under way at a time; equal requests are joined."""


class TeacherModel:
    """A plain class; `jobs.teachers.teaching` makes it an actor."""

    def __init__(self, config: EndpointConfig, ledger: Path, where: str = "") -> None:
        """where: the recipe's key of the configuration, for errors that name a setting."""
        freeze_gc()
        self._name = config.name
        self._ledger = Ledger(ledger)
        self._lost = Ledger(ledger / "lost")
        self._mistake = ""
        self._endpoint: Endpoint | None = None
        try:
            self._endpoint = Endpoint(config, where, answered=not self._ledger.is_empty())
        except UserError as error:  # raised from an actor's constructor, its type would be lost
            self._mistake = str(error)
        self._under_way: Memo[Completion | InfrastructureError] = Memo(UNDER_WAY, keep=lambda _: False)

    def mistake(self) -> str:
        """The user error that prevents using the model; empty if there is none."""
        return self._mistake

    def trouble(self) -> str:
        """Describes the failure while the endpoint gives no replies; empty if there is none."""
        endpoint = self._endpoint
        if endpoint is None or endpoint.failed_in_a_row < TROUBLE:
            return ""
        return f"model {self._name}: {endpoint.failed_in_a_row} attempts in a row failed: {endpoint.last_failure}"

    def notices(self) -> list[str]:
        """Sentences about the endpoint that the user should read; grows."""
        return self._endpoint.notices if self._endpoint is not None else []

    def move(self, url: str) -> None:
        """The endpoint is at this URL from now on, /v1 included: its server was started again."""
        if self._endpoint is not None:
            self._endpoint.move(url)

    async def complete(
        self, messages: Sequence[JsonView], seed: int, options: JsonView | None = None
    ) -> Completion | InfrastructureError:
        """Returns the completion or the error, including DiskFull, with the usage of everything that was ever sent for
        this request. Raises UserError for a mistake of the user. options: as in `Endpoint.complete`."""
        key = key_of(self._name, messages, seed, options or {})
        try:
            if kept := self._ledger.get(key):
                usage, calls = Usage(*kept["usage"]), tuple(kept.get("tool_calls", ()))
                return Completion(kept["text"], kept["finish_reason"], usage, tool_calls=calls)
            return await self._under_way.get(key, lambda: self._ask(key, messages, seed, options))
        except InfrastructureError as error:
            return error

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()

    async def _ask(
        self, key: str, messages: Sequence[JsonView], seed: int, options: JsonView | None
    ) -> Completion | InfrastructureError:
        if self._endpoint is None:
            raise UserError(self._mistake)
        lost = Usage(*(self._lost.get(key) or ()))
        try:
            # The usage is stored before sending, since this process may be killed while the endpoint works on the
            # request.
            completion = await self._endpoint.complete(
                messages, seed=seed, on_send=lambda took: self._lost.put(key, astuple(lost + took)), **(options or {})
            )
        except InfrastructureError as error:
            error.usage += lost
            self._lost.put(key, astuple(error.usage))
            return error
        usage = completion.usage + lost
        record = {"text": completion.text, "finish_reason": completion.finish_reason, "usage": astuple(usage)}
        if completion.tool_calls:
            record["tool_calls"] = completion.tool_calls
        self._ledger.put(key, record)
        return replace(completion, usage=usage)


def key_of(name: str, messages: Sequence[JsonView], seed: int, options: JsonView) -> str:
    """The key of a request in the ledger: a digest of its content."""
    request = json.dumps([name, list(messages), seed, dict(options)], sort_keys=True)
    return hashlib.sha256(request.encode()).hexdigest()
