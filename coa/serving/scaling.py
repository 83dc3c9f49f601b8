"""Computes the number of replicas for a load. Pure: `cluster.serving` gets the numbers from Ray Serve.

The load in replicas is all requests over the target per replica, or all KV cache use over its target, whichever is
higher. A load near a threshold does not repeatedly add and remove a replica (`coa.scaling`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coa.bounds import AtLeast1, PositiveShare, ProperShare
from coa.scaling import banded

RUNNING, KV_USE = "running", "kv_use"
"""The names under which a replica reports the fields of a ReplicaLoad."""


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load that a replica reports."""

    running: float
    """Number of running episodes and other requests."""
    kv_use: float
    """Used share of its KV cache, 0 to 1."""


@dataclass(frozen=True)
class ScalingConfig:
    """When replicas of the server are added and removed."""

    target_requests: AtLeast1 = 32
    """Average number of running requests per replica above which a replica is added."""
    target_kv_use: PositiveShare = 0.8
    """Used share of the KV caches, on average over the replicas, above which a replica is added."""
    slack: ProperShare = 0.7
    """A replica is removed if the others would stay below this share of both targets. A smaller value keeps replicas
    longer."""
    up_after_s: float = 10.0
    """Seconds for which the load must need more replicas before they are started."""
    down_after_s: float = 120.0
    """Seconds for which fewer replicas must suffice for the load before one is removed."""
    zero_after_s: float = 600.0
    """Seconds without a request after which the last replica ends, if serving.min_replicas=0."""
    look_back_s: float = 20.0
    """Seconds over which the load is averaged."""


def wanted(
    loads: Sequence[ReplicaLoad], *, queued: float, now: int, config: ScalingConfig, least: int, most: int
) -> int:
    """The number of replicas for a load. queued: requests that wait for a replica. now: running and starting replicas;
    a replica that has not reported counts as idle."""
    need = needed(loads, queued, config)
    found = banded(need, now, config.slack)
    if need > 0:
        found = max(found, 1)
    return min(max(found, least), most)


def needed(loads: Sequence[ReplicaLoad], queued: float, config: ScalingConfig) -> float:
    """The number of replicas that would be exactly at their target."""
    by_requests = (sum(load.running for load in loads) + queued) / config.target_requests
    by_kv_use = sum(load.kv_use for load in loads) / config.target_kv_use
    return max(by_requests, by_kv_use)
