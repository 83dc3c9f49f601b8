"""A language model that all roles share: one object, so that the limits of its endpoint hold over all of them.

planner ──┐
searcher ─┼── LanguageModel ── Endpoint: places, retries, pauses ── the model
critic ───┘
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coa.errors import InfrastructureError, UserError
from coa.models.completion import Completion
from coa.models.endpoint import Endpoint, EndpointConfig
from coa.usage import Usage

CALLS_AT_ONCE = 10_000
"""That the actor takes; those beyond the endpoint's limits wait in line there."""


@dataclass(frozen=True, slots=True)
class LanguageModelStats:
    calls: int
    failures: Mapping[str, int]
    """Calls that gave no completion, by the type of their error."""
    usage: Usage
    """Of all replies; its requests are all that were sent."""
    retries: Mapping[str, int]
    """Requests sent again, by reason, such as "status 429"."""
    running: int
    """Requests under way now."""
    waiting: int
    """Requests that wait for a place now."""


class LanguageModel:
    """A plain class; on Ray, `start_language_model` makes it an actor."""

    def __init__(self, config: EndpointConfig, *, answered: bool = False) -> None:
        """answered: as of `Endpoint`."""
        self._counts: Counter[str] = Counter()
        self._mistake = ""
        self._endpoint: Endpoint | None = None
        try:
            self._endpoint = Endpoint(config, answered=answered)
        except UserError as error:  # raised from an actor's constructor it would reach nobody as what it is
            self._mistake = str(error)

    def mistake(self) -> str:
        """What a person did wrong, so that there is no model; empty if nothing."""
        return self._mistake

    async def complete(
        self, messages: Sequence[Mapping[str, Any]], seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> Completion | InfrastructureError:
        """options: as of `Endpoint.complete`. What is down is a value; raises UserError where a person is at fault."""
        self._counts["calls"] += 1
        if self._endpoint is None:
            raise UserError(self._mistake)
        try:
            return await self._endpoint.complete(messages, seed=seed, **(options or {}))
        except InfrastructureError as error:
            self._counts[type(error).__name__] += 1
            return error

    def stats(self) -> LanguageModelStats:
        sent: Counter[str] = Counter() if self._endpoint is None else self._endpoint.http.counts
        mark = "retries: "
        return LanguageModelStats(
            calls=self._counts["calls"],
            failures={name: count for name, count in self._counts.items() if name != "calls"},
            usage=Usage(sent["attempts"], sent["prompt tokens"], sent["completion tokens"]),
            retries={name.removeprefix(mark): count for name, count in sent.items() if name.startswith(mark)},
            running=0 if self._endpoint is None else self._endpoint.limiter.running,
            waiting=0 if self._endpoint is None else self._endpoint.limiter.waiting,
        )

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()


def start_language_model(config: EndpointConfig, *, cpus: float = 0.0) -> Any:
    """The actor. It keeps nothing that matters: a restarted one serves as before, its counts from nothing."""
    import ray

    options = {"num_cpus": cpus, "max_concurrency": CALLS_AT_ONCE, "max_restarts": -1, "max_task_retries": -1}
    make: Any = ray.remote(LanguageModel).options(**options)
    return make.remote(config)
