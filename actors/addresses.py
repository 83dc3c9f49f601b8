"""At which address the processes of a cluster reach each other."""

from collections.abc import Mapping, Sequence
from typing import Any

LOOPBACK = "127.0.0.1"


def node_address() -> str:
    """The address at which the cluster reaches this node. To be called in the actor, since a node may have been added
    for it."""
    import ray
    import ray.util
    from ray._private.state import state  # whether there is an autoscaler has no public interface

    own = ray.util.get_node_ip_address()
    return own if state.get_cluster_config() is not None else reached_at(own, ray.nodes())


def reached_at(own: str, nodes: Sequence[Mapping[str, Any]]) -> str:
    """The node's own address, or loopback where there is no other node. nodes: the result of `ray.nodes()`."""
    return own if sum(node["Alive"] for node in nodes) > 1 else LOOPBACK
