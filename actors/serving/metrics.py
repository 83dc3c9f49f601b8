"""Prometheus metrics of the server: its own, and those of vLLM in this process."""

import asyncio
import time
from collections.abc import Callable, Iterator

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.registry import Collector
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROTOCOLS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/messages": "messages",
    "/v1/responses": "responses",
    "/mcp": "mcp",
}
"""Protocol names by path; other paths are not counted."""
LEFT = "499"
"""Status of a request whose client disconnected before the answer; nginx uses the same code."""
DEFECT = "500"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
KV_USE = "vllm:kv_cache_usage_perc"
"""vLLM's gauge of the share of the KV cache that requests under way hold, from 0 to 1 despite its name."""


class ServingMetrics:
    """The metrics of one replica, named like the metrics of a run where these exist."""

    def __init__(self, replica: str = "") -> None:
        """replica: label of all metrics, since a scrape reaches only one of several replicas."""
        self._replica = replica
        self._own = own = CollectorRegistry()
        self.requests = Counter(
            "coa_requests", "HTTP requests that were answered", ("protocol", "status"), registry=own
        )
        self.episodes = Gauge("coa_episodes", "episodes under way", registry=own)
        self.ended = Counter("coa_episodes_ended", "episodes that have ended, by how", ("status",), registry=own)
        self.policy_tokens = Counter("coa_policy_tokens", "tokens that the policy sampled in episodes", registry=own)
        self.input_tokens = Counter(
            "coa_input_tokens", "tokens of prompts and observations of ended episodes", registry=own
        )
        self.tool_calls = Counter("coa_tool_calls", "calls that tools answered", ("tool",), registry=own)
        self.tool_failures = Counter("coa_tool_failures", "calls that failed to the last try", registry=own)
        self.first_token = Histogram(
            "coa_first_token_seconds", "from an episode's start to its first token", buckets=SECONDS, registry=own
        )
        self.version = Gauge("coa_weight_version", "version of the weights that are served", registry=own)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        together = CollectorRegistry()
        together.register(_Labelled((self._own, REGISTRY), self._replica))
        return generate_latest(together)


class _Labelled(Collector):
    """Collects the metrics of several registries, with the replica's label."""

    def __init__(self, registries: tuple[CollectorRegistry, ...], replica: str) -> None:
        self._registries, self._label = registries, {"replica": replica} if replica else {}

    def collect(self) -> Iterator[Metric]:
        for registry in self._registries:
            for family in registry.collect():
                family.samples = [one._replace(labels={**one.labels, **self._label}) for one in family.samples]
                yield family

    def describe(self) -> Iterator[Metric]:
        """Describes nothing, since this is the registry's only collector and its names can't collide."""
        return iter(())


def kv_use() -> float:
    """Share of the KV cache that the engine of this process uses; 0 if it does not report it."""
    found = (one.value for family in REGISTRY.collect() if family.name == KV_USE for one in family.samples)
    return max(found, default=0.0)


class FirstToken:
    """Measures the time to the first token of one episode."""

    def __init__(self, metrics: ServingMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._clock = metrics, clock
        self._began: float | None = clock()

    def came(self) -> None:
        if self._began is not None:
            self._metrics.first_token.observe(self._clock() - self._began)
            self._began = None


class CountedRequests:
    """ASGI middleware that counts requests by protocol and status."""

    def __init__(self, app: ASGIApp, metrics: ServingMetrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        protocol = PROTOCOLS.get(scope.get("path", "").rstrip("/")) if scope["type"] == "http" else None
        if protocol is None:
            await self._app(scope, receive, send)
            return
        status = LEFT

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except (asyncio.CancelledError, ClientDisconnect):
            raise
        except BaseException:
            # An unexpected exception, which an outer middleware answers.
            status = DEFECT if status == LEFT else status
            raise
        finally:
            self._metrics.requests.labels(protocol, status).inc()
