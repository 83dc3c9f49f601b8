"""The server on Ray Serve: an autoscaling deployment of replicas, each with its own engine."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from actors.rollout.config import EngineConfig
from actors.serving.replica import Replica
from actors.tools.remote import ToolClient
from cluster.resources import PlacementConfig
from cluster.serving.front import READY
from cluster.serving.readiness import Probe
from cluster.serving.scaling import ScalingPolicy
from coa.agent.episode import AgentConfig
from coa.serving.config import ServingConfig
from coa.serving.front import front_of, variables
from coa.serving.shared import Shared
from coa.tools.client import RetryConfig

if TYPE_CHECKING:
    from ray import serve

APPLICATION, DEPLOYMENT, SHARED = "coa", "afm", "shared"
PROBE, PROBE_ROUTE = "coa-readyz", READY
NODE_LABEL = "ray.io/node-id"
"""Label that Ray gives each node."""
DRAINED_EVERY_S = 0.2
"""Seconds between a stopping replica's checks for requests under way; without any, it ends after the first check."""
QUIET = {"enable_access_log": False}
"""Disables Serve's access log: it took a fifth of a proxy's time, and /metrics counts the requests."""


def probe() -> "serve.Application":
    """The application at PROBE_ROUTE."""
    from ray import serve

    deployment = serve.deployment(name="probe", num_replicas=1, ray_actor_options={"num_cpus": 0})
    return deployment(Probe).bind(APPLICATION, DEPLOYMENT)


def run(app: "serve.Application", config: ServingConfig, token: str) -> None:
    """Starts Serve with both applications; returns once Ray has seen that the server has its replicas, a moment after
    /readyz tells it. token: secret with which the server can be closed (`cluster.serving.closing`)."""
    from ray import serve

    # If Serve is already running, its options stay in effect.
    serve.start(
        proxy_location="HeadOnly",
        http_options={"host": config.host, "port": config.port},
        logging_config=QUIET,
        # Serve's proxies are started by its controller, and have its environment.
        controller_options={"runtime_env": {"env_vars": variables(front_of(config, token))}},
    )
    serve.run_many(
        [
            serve.RunTarget(probe(), name=PROBE, route_prefix=PROBE_ROUTE),
            serve.RunTarget(app, name=APPLICATION, route_prefix="/"),
        ]
    )


def deployment(replica: type, config: ServingConfig, placement: PlacementConfig) -> "serve.Deployment":
    """Makes a class an autoscaling deployment."""
    from ray import serve
    from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, BackpressureConfig

    scaling = config.scaling
    return serve.deployment(
        name=DEPLOYMENT,
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
            target_ongoing_requests=scaling.target_requests,
            upscale_delay_s=scaling.up_after_s,
            downscale_delay_s=scaling.down_after_s,
            downscale_to_zero_delay_s=scaling.zero_after_s,
            look_back_period_s=scaling.look_back_s,
            policy=AutoscalingPolicy(policy_function=ScalingPolicy, policy_kwargs=asdict(scaling)),
        ),
        health_check_period_s=5.0,
        health_check_timeout_s=30.0,
        graceful_shutdown_timeout_s=config.close_s,
        graceful_shutdown_wait_loop_s=DRAINED_EVERY_S,
        logging_config=QUIET,
    )(replica)


def shared(config: ServingConfig, node: str | None) -> "serve.Application":
    """The state that replicas share, as a deployment, so that it lives as long as the server. node: id of the node that
    has the file of the responses; None if all have it."""
    from ray import serve

    where = {} if node is None else {"label_selector": {NODE_LABEL: node}}
    options: dict[str, Any] = {
        "num_replicas": 1,
        "max_ongoing_requests": 1000,
        "ray_actor_options": {"num_cpus": 0, **where},
    }
    return serve.deployment(name=SHARED, **options)(Shared).bind(config.store)


def application(
    model_dir: str,
    *,
    config: ServingConfig,
    engine: EngineConfig,
    agent: AgentConfig,
    placement: PlacementConfig,
    tools: Callable[[], ToolClient],
    retry: RetryConfig,
    node: str | None = None,
) -> "serve.Application":
    """The application to run. tools: called in each replica. node: id of the
    node that has the file of the responses, if others lack it."""
    from ray import serve

    return deployment(serve.ingress()(Replica), config, placement).bind(
        model_dir,
        config=config,
        engine=engine,
        gpus=placement.engine_gpus,
        agent=agent,
        tools=tools,
        retry=retry,
        shared=shared(config, node) if config.max_replicas > 1 or node is not None else None,
    )
