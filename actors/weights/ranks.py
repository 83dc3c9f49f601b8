"""A learner rank's view of all ranks for publishing weights: which ranks share its node, and collective operations."""

from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from actors.learner.zero import gather
from actors.weights.manifest import Layout, Manifest, digest
from actors.weights.parts import ModelParts
from actors.weights.segment import reading, write_pieces

T = TypeVar("T")


class Ranks:
    """All learner ranks. Every method is collective; waits end with the process group's timeout."""

    def __init__(self, node: str) -> None:
        """node: name of the machine, the same for all ranks on it."""
        self.rank, self.world, self.node = dist.get_rank(), dist.get_world_size(), node
        self.nodes: list[str] = self.gather(node)
        here = [rank for rank, other in enumerate(self.nodes) if other == self.nodes[0]]
        self.first_node = self.nodes[0]
        """Node of rank 0, where published weights are assembled."""
        self.writers = len(here)
        """Number of ranks on the first node."""
        self.writer = here.index(self.rank) if self.rank in here else None
        """This rank's index among the first node's ranks; None on another node."""

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in order."""
        return gather(value)

    def barrier(self) -> None:
        self.gather(None)

    def write(self, path: Path, parts: ModelParts) -> None:
        """Writes this rank's part of the model into a file of its node; returns once all ranks have written theirs."""
        write_part(path, parts, self.writer, self.writers)

    def seal(self, path: Path, layout: Layout, version: int) -> Manifest:
        """The manifest of a file that is complete on the first node; the first node's ranks share the work."""
        own: dict[int, bytes] = {}
        if self.writer is not None:
            with reading(path, layout, len(layout.header())) as read:
                for index in range(self.writer, layout.buckets, self.writers):
                    own[index] = digest(read(*layout.bucket(index)))
        digests: dict[int, bytes] = {}
        for found in self.gather(own):
            digests |= found
        return Manifest(version, layout, tuple(digests[index] for index in range(layout.buckets)))


def write_part(path: Path, parts: ModelParts, writer: int | None, writers: int) -> None:
    """Writes this rank's ranges as number `writer` of `writers` (`ModelParts.ranges`); collective, and returns once all
    ranks have written theirs."""
    write_pieces(path, parts.layout, parts.pieces(writer, writers))
    gather(None)


def write_whole(path: Path, parts: ModelParts) -> None:
    """Writes the model into a file that every rank can access; collective, and returns once the file is complete."""
    write_part(path, parts, dist.get_rank(), dist.get_world_size())


def from_first(value: T) -> T:
    """Rank 0's value, on every rank."""
    found = [value]
    dist.broadcast_object_list(found)
    return found[0]
