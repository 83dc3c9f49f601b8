"""The server on Ray Serve: a deployment of replicas, each with an engine of its own, and its scaling."""

from collections.abc import Sequence
from typing import Any

from actors.rollout.config import EngineConfig
from actors.serving.replica import Replica
from actors.serving.shared import start_shared
from actors.tools.remote import RemoteExecutor
from cluster.resources import PlacementConfig
from coa.agent.episode import AgentConfig
from coa.serving.config import ServingConfig
from coa.tools.client import RetryConfig

APPLICATION = "coa"


def application(
    model_dir: str,
    *,
    config: ServingConfig,
    engine: EngineConfig,
    agent: AgentConfig,
    placement: PlacementConfig,
    executors: Sequence[Any],
    retry: RetryConfig,
) -> Any:
    """The application to run. executors: handles of tool executors."""
    from ray import serve
    from ray.serve.config import AutoscalingConfig, BackpressureConfig

    deployment = serve.deployment(
        name="afm",
        max_ongoing_requests=config.max_requests,
        max_queued_requests=config.max_queued,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=1),
        ray_actor_options={
            "num_cpus": placement.engine_cpus,
            "num_gpus": placement.engine_gpus,
        },
        autoscaling_config=AutoscalingConfig(
            min_replicas=config.min_replicas,
            max_replicas=config.max_replicas,
            target_ongoing_requests=config.target_requests,
        ),
        health_check_period_s=5.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=60.0,
    )
    wrapped = deployment(serve.ingress()(Replica))
    return wrapped.bind(
        model_dir,
        config=config,
        engine=engine,
        agent=agent,
        executors=[RemoteExecutor(executor) for executor in executors],
        retry=retry,
        shared=start_shared(config.store) if config.max_replicas > 1 else None,
    )
