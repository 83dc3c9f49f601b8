"""A language model that teachers think with: what it said once is kept, and never asked for again.

    request -- in the ledger? -- yes --> the same completion
                     | no
                     +-- under way for another caller? -- yes --> wait for that
                                 | no
                                 +--> endpoint --> ledger --> completion

A request is known by its content: model, messages, seed and options. The ledger has the completion before anybody else
does, so whoever dies afterwards, this actor included, has it not to pay for a second time. A second ledger has what
requests took that gave none: the last that is told of a request, a completion or an error, tells all that it took.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from actors.language_model import LanguageModel
from coa.errors import InfrastructureError
from coa.heap import freeze
from coa.ledger import Ledger
from coa.models.completion import Completion
from coa.models.endpoint import EndpointConfig
from coa.tools.cache import Memo
from coa.usage import Usage

UNDER_WAY = 100_000
"""Requests that may be under way at the same time, each joined by equal ones."""


class TeacherModel:
    """A plain class that Ray is applied to at the edge."""

    def __init__(self, config: EndpointConfig, ledger: Path) -> None:
        freeze()
        self._name = config.name
        self._ledger = Ledger(ledger)
        self._lost = Ledger(ledger / "lost")
        self._model = LanguageModel(config, answered=not self._ledger.is_empty())
        self._under_way: Memo[Completion | InfrastructureError] = Memo(UNDER_WAY, keep=lambda _: False)

    def mistake(self) -> str:
        """What a person did wrong, so that there is no model; empty if nothing."""
        return self._model.mistake()

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], seed: int, options: Mapping[str, Any] | None = None
    ) -> Completion | InfrastructureError:
        """What is down is a value, DiskFull too. The usage, also of what is down, is all that this request ever took.
        Raises UserError where a person is at fault."""
        key = key_of(self._name, messages, seed, options or {})
        try:
            if kept := self._ledger.get(key):
                return Completion(kept["text"], kept["finish_reason"], Usage(*kept["usage"]))
            return await self._under_way.get(key, lambda: self._ask(key, messages, seed, options))
        except InfrastructureError as error:
            return error

    async def _ask(
        self, key: str, messages: Sequence[Mapping[str, Any]], seed: int, options: Mapping[str, Any] | None
    ) -> Completion | InfrastructureError:
        completion = await self._model.complete(messages, seed, options)
        usage = completion.usage + Usage(*(self._lost.get(key) or ()))
        if isinstance(completion, InfrastructureError):
            completion.usage = usage
            self._lost.put(key, astuple(usage))
            return completion
        told = {"text": completion.text, "finish_reason": completion.finish_reason, "usage": astuple(usage)}
        self._ledger.put(key, told)
        return replace(completion, usage=usage)


def key_of(name: str, messages: Sequence[Mapping[str, Any]], seed: int, options: Mapping[str, Any]) -> str:
    request = json.dumps([name, list(messages), seed, dict(options)], sort_keys=True)
    return hashlib.sha256(request.encode()).hexdigest()
