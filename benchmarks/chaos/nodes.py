"""A Ray cluster of several nodes on this machine, whose nodes may be killed and are then replaced."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chaos.processes import end

NODES = 2
"""Number of nodes besides the head, which runs the driver and nothing that reserves CPUs."""
NODE_CPUS = 3
"""Logical CPUs of a node: one node has room for most of the run, which continues while the other one is replaced."""
STORE_BYTES = 200 * 2**20


@dataclass
class Nodes:
    cluster: Any
    lost: int = 0
    """Number of nodes that were killed and are not replaced yet."""
    _at_work: dict[int, Any] = field(default_factory=dict)
    """Running nodes, by the process id of their raylet."""

    @property
    def address(self) -> str:
        return self.cluster.address

    def raylets(self) -> list[int]:
        """Process ids of the running nodes' raylets, without the head's."""
        return list(self._at_work)

    def head(self) -> int:
        return raylet_of(self.cluster.head_node)

    def add(self) -> None:
        """Adds a node; raises ClusterDown."""
        from cluster.session import until_up

        node = until_up(lambda: self.cluster.add_node(num_cpus=NODE_CPUS, object_store_memory=STORE_BYTES))
        self._at_work[raylet_of(node)] = node

    def kill(self, raylet: int) -> None:
        """Kills a node without notice: the raylet and all of its descendants."""
        node = self._at_work.pop(raylet)
        end(raylet)
        self.cluster.remove_node(node, allow_graceful=False)
        self.lost += 1

    def replace_lost(self) -> None:
        """Adds a node for each one that was lost, as an autoscaler does."""
        while self.lost:
            self.add()
            self.lost -= 1


def raylet_of(node: Any) -> int:
    [found] = node.all_processes["raylet"]
    return found.process.pid


@contextmanager
def nodes() -> Iterator[Nodes]:
    """The cluster, which is up within the context and has an authentication token of its own; raises ClusterDown."""
    from cluster.session import own_token, until_up

    own_token()
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster = until_up(lambda: Cluster(initialize_head=True, head_node_args=head))
    try:
        found = Nodes(cluster)
        for _ in range(NODES):
            found.add()
        yield found
    finally:
        cluster.shutdown()
