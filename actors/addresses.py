"""The address at which the processes of a cluster reach each other."""

from collections.abc import Sequence

from coa.json_object import JsonView

LOOPBACK = "127.0.0.1"


def node_address() -> str:
    """The address at which the cluster reaches this node. Call it inside the actor, since a node may have been added
    for the actor."""
    import ray
    import ray.util
    from ray._private.state import state  # no public API tells whether there is an autoscaler

    own = ray.util.get_node_ip_address()
    return own if state.get_cluster_config() is not None else reached_at(own, ray.nodes())


def reached_at(own: str, nodes: Sequence[JsonView]) -> str:
    """The node's own address, or loopback if there is no other live node. nodes: the result of `ray.nodes()`."""
    return own if sum(node["Alive"] for node in nodes) > 1 else LOOPBACK
