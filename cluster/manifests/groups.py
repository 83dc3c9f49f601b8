"""The groups of identical nodes that a job runs on, derived from its simultaneous demands.

head       no work, only the driver                        one node
learner    ranks of the learners                           a fixed number of nodes
engine     one rollout engine, or a server's replica       on spot machines; the autoscaler adds and removes them
tool       tool executors                                  the autoscaler adds and removes them
model      models that teachers think with, and scorers    the autoscaler adds and removes them
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cluster.resources import Demand, Role
from coa.errors import UserError

MEMORY_GIB_OF_CPU, MEMORY_GIB_OF_GPU, LEAST_MEMORY_GIB = 4, 96, 8
"""Memory requested per CPU and per GPU, and minimum per node, since a recipe does not specify the machines' memory."""
SHARES_A_NODE = (Role.learner, Role.tool)
"""Roles of which several share a node. Each engine has its own node, so that losing a spot machine loses one engine."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The largest node that a group may request."""

    cpus: int
    gpus: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group of nodes of one size."""

    role: Role
    nodes: int
    """Maximum number of nodes; if `fixed`, the constant number."""
    fixed: bool
    cpus: int
    gpus: int

    @property
    def memory_gib(self) -> int:
        return max(LEAST_MEMORY_GIB, MEMORY_GIB_OF_CPU * self.cpus, MEMORY_GIB_OF_GPU * self.gpus)


def groups_of(stages: Iterable[Sequence[Demand]], machine: Machine) -> list[Group]:
    """Groups with room for each stage's demands; stages do not run at the same time. Raises UserError for a demand that
    is larger than a node."""
    wanted: dict[Role, Group] = {}
    for demands in stages:
        for role in Role:
            group = _group(role, [demand for demand in demands if demand.role is role], machine)
            if group is not None and (role not in wanted or _size(group) > _size(wanted[role])):
                wanted[role] = group
    return [wanted[role] for role in Role if role in wanted]


def _group(role: Role, demands: Sequence[Demand], machine: Machine) -> Group | None:
    """The group for a role's demands, sized by the largest; demands are equal for all roles but models."""
    if not demands:
        return None
    cpus, gpus = (max(demand.resources.get(name, 0) for demand in demands) for name in ("CPU", "GPU"))
    for name, each, most in (("cpus", cpus, machine.cpus), ("gpus", gpus, machine.gpus)):
        if each > most:
            what = name.removesuffix("s").upper()
            raise UserError(
                f"a node for {role.value} needs {each:g} {what}s, and the largest one has {most} (--node-{name})"
            )
    together = min(len(demands), _fit(machine.cpus, cpus), _fit(machine.gpus, gpus)) if role in SHARES_A_NODE else 1
    return Group(
        role=role,
        nodes=math.ceil(len(demands) / together),
        fixed=role is Role.learner,
        cpus=max(1, math.ceil(together * cpus)),
        gpus=math.ceil(together * gpus),
    )


def _fit(of_node: int, each: float) -> int:
    """Number of demands that fit on a node."""
    return int(of_node / each) if each else 1_000_000


def _size(group: Group) -> tuple[int, int]:
    return (group.nodes * group.gpus, group.nodes * group.cpus)
