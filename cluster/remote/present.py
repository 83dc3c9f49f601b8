"""The available nodes: of a running cluster, or this machine."""

import os

from cluster.remote.reach import require_cluster
from cluster.resources import Resources, cluster_nodes
from coa.planning.clusters import Node, device_called, device_of

ACCELERATOR = "accelerator_type:"
"""Prefix of the resource by which Ray tells a node's GPU type."""


def present_nodes(address: str | None) -> tuple[Node, ...]:
    """The nodes of the Ray cluster at an address, including those that its autoscaler may add; without an address this
    machine, without starting Ray. Raises UserError if no compatible cluster answers."""
    if address is None:
        return (_here(),)
    if address != "local":
        require_cluster(address)
    import ray

    ray.init(address=address, log_to_driver=False)
    try:
        return tuple(node_of(resources) for resources in cluster_nodes())
    finally:
        ray.shutdown()


def node_of(resources: Resources) -> Node:
    """Converts Ray's resources of a node."""
    names = (name.removeprefix(ACCELERATOR) for name in resources if name.startswith(ACCELERATOR))
    device = next((found for name in names if (found := device_of(name))), None)
    return Node(int(resources.get("GPU", 0)), device, resources.get("CPU", 0.0))


def _here() -> Node:
    import torch

    device = None
    if count := torch.cuda.device_count():
        device = device_called(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory)
    return Node(count, device, float(os.cpu_count() or 1))
