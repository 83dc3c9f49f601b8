"""Checks once, when a job begins, that all nodes that may need the job's files see the same files.

driver writes a marker ──► a task on each node reads it, and the paths that the job reads ──► one clear line
"""

import os
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.resources import ROLE_LABEL, Role
from coa.errors import UserError
from coa.json_object import Json

FILES_OF = (Role.learner, Role.engine, Role.model)
"""Nodes that read models or write checkpoints. Tools get what they need in their actors."""
RUN_DIR = "run_dir"
ANSWER_S = 120.0
"""Maximum seconds for a node's answer, including the start of a worker."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Result of the check on one node."""

    node: str
    """The node's address."""
    folder: bool
    """Whether the job's folder is the same as the driver's."""
    missing: tuple[str, ...]
    """Paths that the job reads and that do not exist on the node."""


def complaint(folder: str, seen: Iterable[Seen], key: str = RUN_DIR) -> str:
    """One line for the first node that lacks something; empty where all see the same. key: the folder's setting."""
    for one in seen:
        if not one.folder:
            return (
                f"{key} {folder} is not shared: node {one.node} does not see what the driver writes there. Set it to "
                "a folder that all nodes mount, such as NFS"
            )
        if one.missing:
            return f"{one.missing[0]} is not there on node {one.node}: put it where all nodes see it"
    return ""


def asked(nodes: Sequence[Json], *, by_role: bool, roles: Sequence[Role] = FILES_OF) -> list[Json]:
    """Ray nodes that may need the job's files; none if there is only one node."""
    alive = [node for node in nodes if node["Alive"]]
    if len(alive) < 2:
        return []
    if by_role:
        return [node for node in alive if node["Labels"].get(ROLE_LABEL) in set(roles)]
    return [node for node in alive if node["Resources"].get("CPU")]


def require_shared(
    folder: Path | None,
    reads: Sequence[str],
    *,
    by_role: bool,
    roles: Sequence[Role] = FILES_OF,
    key: str = RUN_DIR,
) -> None:
    """Raises UserError where a node does not see the driver's folder, if there is one, or a path that is read there.
    roles: those of the nodes that are asked, `by_role`. key: the folder's setting."""
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = asked(ray.nodes(), by_role=by_role, roles=roles)
    if not nodes:
        return
    look: Any = ray.remote(_look)
    with nullcontext(("", "")) if folder is None else _marker(folder) as (marker, said):
        looks = [
            look.options(
                num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(node["NodeManagerAddress"], marker, said, list(reads))
            for node in nodes
        ]
        try:
            seen = ray.get(looks, timeout=ANSWER_S)
        except GetTimeoutError as error:
            raise UserError(
                f"a node did not answer within {ANSWER_S:g} s when it was asked which files it sees"
            ) from error
    if line := complaint(str(folder), seen, key):
        raise UserError(line)


@contextmanager
def _marker(folder: Path) -> Iterator[tuple[str, str]]:
    """Creates a file in the folder for the context; yields its path and content. Newly created folders stay if they are
    used."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    said = secrets.token_hex(8)
    marker = folder / f".shared-{said}"
    marker.write_text(said)
    try:
        yield str(marker), said
    finally:
        marker.unlink(missing_ok=True)
        for path in made:
            if not any(path.iterdir()):
                path.rmdir()


def _look(node: str, marker: str, said: str, reads: Sequence[str]) -> Seen:
    """Runs on the node; also checks that the marker's folder is writable. marker: "" without a folder to check."""
    path = Path(marker)
    try:
        same = not marker or (path.read_text() == said and os.access(path.parent, os.W_OK))
    except OSError:
        same = False
    return Seen(node, same, tuple(read for read in reads if not Path(read).exists()))
