"""Ray Serve's autoscaling policy for replicas: its controller calls `coa.serving.scaling`."""

from typing import TYPE_CHECKING, Any

from coa.json_object import Json
from coa.serving.scaling import KV_USE, RUNNING, ReplicaLoad, ScalingConfig, wanted

if TYPE_CHECKING:
    import ray.serve.config


class ScalingPolicy:
    """Decides the number of replicas. Ray Serve makes one policy per deployment, and applies its configured delays to
    the result."""

    def __init__(self, **config: Any) -> None:
        """config: the fields of a ScalingConfig."""
        self._config = ScalingConfig(**config)

    def __call__(self, context: "ray.serve.config.AutoscalingContext") -> tuple[int, Json]:
        """context: Ray's AutoscalingContext. Returns the number of replicas, and an empty policy state."""
        told = context.aggregated_metrics or {}
        running, kv_use = told.get(RUNNING, {}), told.get(KV_USE, {})
        found = wanted(
            [ReplicaLoad(running[one], kv_use.get(one, 0.0)) for one in running],
            queued=context.total_queued_requests or 0.0,
            now=context.target_num_replicas,
            config=self._config,
            least=context.capacity_adjusted_min_replicas,
            most=context.capacity_adjusted_max_replicas,
        )
        return found, {}
