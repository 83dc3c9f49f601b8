"""A language model that teachers think with: each reply is kept on disk and never asked for again.

    request -- in the ledger? -- yes --> the same completion
                     | no
                     +-- under way for another caller? -- yes --> wait for that
                                 | no
                                 +--> endpoint --> ledger --> completion

All roles share one such object, so that the limits of its endpoint hold over all of them. A request is known by its
content: model, messages, seed and options. A completion is in the ledger before any caller gets it, so a caller or an
actor that dies afterwards does not pay for it a second time. A second ledger keeps the usage of requests that gave no
completion, from before each is sent; it is added to the usage of the completion or the error that comes in the end.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from actors.garbage import freeze_gc
from coa.errors import InfrastructureError, UserError
from coa.llm.client import Endpoint, EndpointConfig
from coa.llm.completions import Completion
from coa.storage.ledger import Ledger
from coa.tools.cache import Memo
from coa.usage import Usage

TROUBLE = 3
"""Attempts in a row that fail before anyone is told."""
UNDER_WAY = 100_000
"""Requests that may be under way at the same time, each joined by equal ones."""


class TeacherModel:
    """A plain class that Ray is applied to at the edge (`jobs.teachers.teaching`)."""

    def __init__(self, config: EndpointConfig, ledger: Path) -> None:
        freeze_gc()
        self._name = config.name
        self._ledger = Ledger(ledger)
        self._lost = Ledger(ledger / "lost")
        self._mistake = ""
        self._endpoint: Endpoint | None = None
        try:
            self._endpoint = Endpoint(config, answered=not self._ledger.is_empty())
        except UserError as error:  # raised from an actor's constructor, its type would be lost
            self._mistake = str(error)
        self._under_way: Memo[Completion | InfrastructureError] = Memo(UNDER_WAY, keep=lambda _: False)

    def mistake(self) -> str:
        """The user's mistake because of which there is no model; empty where there is none."""
        return self._mistake

    def trouble(self) -> str:
        """What is wrong while the endpoint gives no reply; empty where nothing is."""
        endpoint = self._endpoint
        if endpoint is None or endpoint.failed_in_a_row < TROUBLE:
            return ""
        return f"model {self._name}: {endpoint.failed_in_a_row} attempts in a row failed: {endpoint.last_failure}"

    def move(self, url: str) -> None:
        """The endpoint is at this URL from now on, /v1 included: its server was started again."""
        if self._endpoint is not None:
            self._endpoint.move(url)

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], seed: int, options: Mapping[str, Any] | None = None
    ) -> Completion | InfrastructureError:
        """The completion, or the error that was met, DiskFull included; each with the usage of all that was ever sent
        for this request. Raises UserError for a user's mistake. options: as of `Endpoint.complete`."""
        key = key_of(self._name, messages, seed, options or {})
        try:
            if kept := self._ledger.get(key):
                return Completion(kept["text"], kept["finish_reason"], Usage(*kept["usage"]))
            return await self._under_way.get(key, lambda: self._ask(key, messages, seed, options))
        except InfrastructureError as error:
            return error

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()

    async def _ask(
        self, key: str, messages: Sequence[Mapping[str, Any]], seed: int, options: Mapping[str, Any] | None
    ) -> Completion | InfrastructureError:
        if self._endpoint is None:
            raise UserError(self._mistake)
        lost = Usage(*(self._lost.get(key) or ()))
        try:
            # Kept before it is sent: this process may be ended while the endpoint works on it.
            completion = await self._endpoint.complete(
                messages, seed=seed, on_send=lambda took: self._lost.put(key, astuple(lost + took)), **(options or {})
            )
        except InfrastructureError as error:
            error.usage += lost
            self._lost.put(key, astuple(error.usage))
            return error
        usage = completion.usage + lost
        record = {"text": completion.text, "finish_reason": completion.finish_reason, "usage": astuple(usage)}
        self._ledger.put(key, record)
        return replace(completion, usage=usage)


def key_of(name: str, messages: Sequence[Mapping[str, Any]], seed: int, options: Mapping[str, Any]) -> str:
    """The key of a request in the ledger: a digest of all that it says."""
    request = json.dumps([name, list(messages), seed, dict(options)], sort_keys=True)
    return hashlib.sha256(request.encode()).hexdigest()
