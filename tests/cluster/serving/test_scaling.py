"""Replicas of a server by its load: the policy with Ray's own context, and Ray Serve with a stub for the engine."""

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import httpx
import pytest

from cluster.resources import PlacementConfig
from cluster.serving import deployment as serving
from cluster.serving.scaling import ScalingPolicy
from coa.serving.config import ServingConfig
from coa.serving.scaling import KV_USE, RUNNING, ScalingConfig
from tests.support.ports import free_port

CONFIG = ScalingConfig(target_requests=4, up_after_s=1, down_after_s=2, zero_after_s=2, look_back_s=2)


def context(*, target: int, queued: float = 0.0, metrics: dict[str, dict[str, float]] | None = None) -> Any:
    """Ray's own, of a deployment of 1 to 3 replicas."""
    from ray.serve._private.common import DeploymentID
    from ray.serve.config import AutoscalingContext

    return AutoscalingContext(
        deployment_id=DeploymentID("afm", "coa"),
        deployment_name="afm",
        app_name="coa",
        current_num_replicas=target,
        target_num_replicas=target,
        running_replicas=[],
        total_num_requests=queued,
        total_queued_requests=queued,
        aggregated_metrics=metrics or {},  # pyright: ignore[reportArgumentType]
        raw_metrics={},
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=3,
        policy_state={},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=0.0,
        config=None,
    )


def test_the_policy_reads_what_replicas_say_and_what_waits() -> None:
    policy = ScalingPolicy(**asdict(CONFIG))
    busy: dict[str, dict[str, float]] = {RUNNING: {"a": 4, "b": 3}, KV_USE: {"a": 0.1, "b": 0.1}}
    assert policy(context(target=2, metrics=busy)) == (2, {})
    assert policy(context(target=2, queued=3, metrics=busy)) == (3, {})
    crowded: dict[str, dict[str, float]] = {RUNNING: {"a": 1}, KV_USE: {"a": 0.8}}
    assert policy(context(target=3, metrics=crowded)) == (2, {})
    assert policy(context(target=2)) == (1, {})


def test_rays_policy_of_a_deployment_is_made_of_the_settings() -> None:
    class Stub:
        pass

    made: Any = serving.deployment(Stub, ServingConfig(max_replicas=3, scaling=CONFIG), PlacementConfig())
    scaling = made._deployment_config.autoscaling_config
    policy = scaling.policy.get_policy()(**scaling.policy.policy_kwargs)
    assert policy(context(target=1, queued=9)) == (3, {})
    assert (scaling.upscale_delay_s, scaling.downscale_delay_s, scaling.downscale_to_zero_delay_s) == (1, 2, 2)


class Stub:
    """A replica without an engine, whose requests take half a second."""

    def __init__(self) -> None:
        self._running = 0

    async def __call__(self, request: Any) -> str:
        self._running += 1
        try:
            await asyncio.sleep(0.5)
            return str(os.getpid())
        finally:
            self._running -= 1

    def record_autoscaling_stats(self) -> dict[str, float]:
        return {RUNNING: self._running, KV_USE: 0.0}

    async def version(self) -> int:
        return 7


@pytest.fixture
def url(no_ray: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server of stubs, on a Ray cluster of its own."""
    for name in ("REPLICA", "HANDLE"):
        monkeypatch.setenv(f"RAY_SERVE_{name}_AUTOSCALING_METRIC_PUSH_INTERVAL_S", "0.5")
    from ray import serve

    from cluster.session import SessionConfig, session

    port = free_port()
    with session(SessionConfig(cpus=2, object_store_gib=0.1)):
        config = ServingConfig(port=port, min_replicas=0, max_replicas=3, scaling=CONFIG, max_requests=8)
        app = serving.deployment(Stub, config, PlacementConfig(engine_cpus=0.1)).bind()
        serving.run(app, config, "")
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()


@pytest.mark.slow
def test_replicas_follow_the_load_from_none_to_three_and_back_without_a_failed_request(url: str) -> None:
    answers: list[int] = []

    def running() -> int | None:
        """Replicas of a ready server; None while a replica that has just started has not said its weights' version."""
        body = httpx.get(f"{url}/readyz", timeout=10).json()
        return body["replicas"] if body["ready"] else None

    async def until(count: int, load: int) -> None:
        """Keeps `load` requests under way until there are so many replicas."""
        async with httpx.AsyncClient(timeout=60) as client:
            ended = asyncio.Event()

            async def ask() -> None:
                while not ended.is_set():
                    answers.append((await client.get(url)).status_code)

            asking = [asyncio.ensure_future(ask()) for _ in range(load)]
            deadline = time.monotonic() + 120
            while await asyncio.to_thread(running) != count:
                assert time.monotonic() < deadline, f"no {count} replicas under {load} requests"
                await asyncio.sleep(0.2)
            ended.set()
            await asyncio.gather(*asking)

    assert running() == 0
    for count, load in ((1, 1), (3, 12), (1, 1), (0, 0)):
        asyncio.run(until(count, load))
    assert set(answers) == {200}
