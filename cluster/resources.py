"""The resources that a run needs, the check that a cluster has them or can add them, and the nodes that are there: of a
running cluster, or this machine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cluster.remote.reach import require_cluster
from coa.bounds import AtLeast1
from coa.errors import UserError
from coa.planning.clusters import Node, device_called, device_of

Resources = Mapping[str, float]

ACCELERATOR = "accelerator_type:"
"""Prefix of the resource by which Ray tells a node's GPU type."""


class Role(StrEnum):
    """Role of a cluster's node."""

    learner = "learner"
    engine = "engine"
    tool = "tool"
    model = "model"
    """Teachers' language models, and the scorer."""


ROLE_LABEL = "coa-role"
"""Name of the Ray label that holds a node's role."""
SCORER_CPUS = 0.25
"""Number of CPUs that the teacher of on-policy distillation reserves in Ray."""


@dataclass(frozen=True)
class PlacementConfig:
    """Numbers of engines and tool executors, and resources of each engine, learner, scorer and tool executor."""

    engines: AtLeast1 = 1
    """Number of rollout engines at a command's start."""
    min_engines: int | None = None
    """Minimum number of rollout engines. If `min_engines` or `max_engines` is set, RL adds and removes engines within
    this range (`pool.scaling`). None: `engines`."""
    max_engines: int | None = None
    """Maximum number of rollout engines, see `min_engines`. None: `engines`."""
    engine_cpus: float = 1.0
    """Number of CPUs that one engine reserves in Ray."""
    engine_gpus: float = 0.0
    """Number of GPUs that one engine reserves in Ray; below 1, it shares a GPU."""
    learner_cpus: float = 0.5
    """Number of CPUs that one learner rank reserves in Ray."""
    learner_gpus: float = 0.0
    """Number of GPUs that one learner rank reserves in Ray; below 1, it shares a GPU."""
    scorer_gpus: float = 0.0
    """Number of GPUs that the teacher of on-policy distillation (`rl.on_policy.teacher`) reserves in Ray."""
    tool_executors: AtLeast1 = 1
    """Tool executors, which are processes that run tools, at the start."""
    min_tool_executors: int | None = None
    """Minimum number of tool executors. If `min_tool_executors` or `max_tool_executors` is set, executors are added and
    removed within this range (`executor.scaling`); None stands for `tool_executors`."""
    max_tool_executors: int | None = None
    """Maximum number of tool executors, see `min_tool_executors`; None stands for `tool_executors`."""
    tool_cpus: float = 0.25
    """Number of CPUs that one tool executor reserves in Ray."""
    learner_restarts: int = 3
    """Maximum number of restarts of failed learners without a newer checkpoint in between; the next failure ends the
    run."""
    by_role: bool = False
    """Whether learners, engines, tool executors and teachers' models run only on nodes whose label `coa-role` names
    their role. This keeps learners off spot machines, and engines off the learners' nodes."""

    @property
    def engine_range(self) -> tuple[int, int]:
        """Minimum and maximum number of engines in RL."""
        least, most = self.min_engines, self.max_engines
        return self.engines if least is None else least, self.engines if most is None else most

    @property
    def tool_range(self) -> tuple[int, int]:
        """Minimum and maximum number of tool executors."""
        least, most = self.min_tool_executors, self.max_tool_executors
        return self.tool_executors if least is None else least, self.tool_executors if most is None else most

    def on(self, role: Role) -> dict[str, Any]:
        """Ray's option that places an actor; empty if any node will do."""
        return {"label_selector": {ROLE_LABEL: role.value}} if self.by_role else {}

    def bundle_on(self, role: Role) -> dict[str, Any]:
        """Ray's option that places a group of one bundle."""
        return {f"bundle_{name}": [labels] for name, labels in self.on(role).items()}


@dataclass(frozen=True, slots=True)
class Demand:
    what: str
    role: Role
    resources: Resources
    optional: bool = False
    """Whether the demand exists only part of the time."""


def learner_demands(config: PlacementConfig, ranks: int) -> list[Demand]:
    learner = {"CPU": config.learner_cpus, "GPU": config.learner_gpus}
    return [Demand("learner rank", Role.learner, learner) for _ in range(ranks)]


def engine_demands(config: PlacementConfig, least: int | None = None, most: int | None = None) -> list[Demand]:
    """Demands of engines and of the tools that their episodes call. least, most: range of the number of engines, if it
    varies."""
    least, most = (config.engines if bound is None else bound for bound in (least, most))
    resources = {"CPU": config.engine_cpus, "GPU": config.engine_gpus}
    engines = [Demand("rollout engine", Role.engine, resources, optional=number >= least) for number in range(most)]
    return [*engines, *tool_demands(config)]


def rl_demands(config: PlacementConfig, ranks: int, *, scored: bool) -> list[Demand]:
    """All simultaneous demands of RL. `scored`: whether a teacher scores the samples."""
    scorer = Demand("scorer", Role.model, {"CPU": SCORER_CPUS, "GPU": config.scorer_gpus})
    return [*engine_demands(config, *config.engine_range), *learner_demands(config, ranks), *[scorer] * scored]


def tool_demands(config: PlacementConfig) -> list[Demand]:
    least, most = config.tool_range
    resources = {"CPU": config.tool_cpus}
    return [Demand("tool executor", Role.tool, resources, optional=number >= least) for number in range(most)]


def placed(demands: Sequence[Demand], nodes: Sequence[Resources]) -> list[tuple[Demand, int | None]]:
    """Each demand with the index of its node, larger demands first; None for a demand that does not fit."""
    free = [dict(node) for node in nodes]
    found: list[tuple[Demand, int | None]] = []
    for demand in sorted(demands, key=lambda d: [-d.resources.get("GPU", 0), -d.resources.get("CPU", 0)]):
        wanted = {name: amount for name, amount in demand.resources.items() if amount > 0}
        fits = (all(node.get(name, 0) + 1e-9 >= amount for name, amount in wanted.items()) for node in free)
        at = next((index for index, it_fits in enumerate(fits) if it_fits), None)
        found.append((demand, at))
        if at is not None:
            for name, amount in wanted.items():
                free[at][name] -= amount
    return found


def unplaced(demands: Sequence[Demand], nodes: Sequence[Resources]) -> Demand | None:
    """The first demand that fits on no node once the larger ones are placed; None if all fit."""
    return next((demand for demand, node in placed(demands, nodes) if node is None), None)


def require(demands: Sequence[Demand], nodes: Sequence[Resources]) -> None:
    """Raises UserError if the demands don't fit on the nodes. nodes: includes those that an autoscaler may add."""
    missing = unplaced(demands, nodes)
    if missing is None:
        return
    total = {name: sum(d.resources.get(name, 0) for d in demands) for name in ("CPU", "GPU")}
    has = {name: sum(node.get(name, 0) for node in nodes) for name in ("CPU", "GPU")}
    raise UserError(
        f"the recipe needs more than the cluster has or can add: {_show(total)} in all, there are {_show(has)} on "
        f"{len(nodes)} node{'s' * (len(nodes) != 1)}; no room for a {missing.what} of {_show(missing.resources)}"
    )


def _show(resources: Resources) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items() if amount) or "nothing"


def on_driver_node() -> dict[str, object]:
    """Ray's options that place an actor on the driver's node, for actors that the driver depends on, so that losing
    another node does not end the run."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=False)}


def this_node(cpus: int | None) -> Resources:
    """Resources of a private cluster on this machine, without starting it. cpus: number of CPUs for it; None for
    all."""
    return {"CPU": cpus or os.cpu_count() or 1, "GPU": _gpus()}


def _gpus() -> int:
    """Number of GPUs by Ray's count, for which there is no public API."""
    from ray._private.accelerators import get_accelerator_manager_for_resource

    manager: Any = get_accelerator_manager_for_resource("GPU")
    return manager.get_current_node_num_accelerators()


def cluster_nodes() -> list[Resources]:
    """The live nodes of the connected cluster, then those that its autoscaler may still add."""
    import ray
    from ray._private.state import state  # the autoscaler's limits have no public interface

    live = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    config = state.get_cluster_config()
    if config is None:
        return live
    grown = [dict(group.resources) for group in config.node_group_configs for _ in range(max(0, group.max_count))]
    # Live workers belong to the same groups, so the larger list is the cluster's potential.
    return live if len(live) > len(grown) else [*live[:1], *grown]


def present_nodes(address: str | None) -> tuple[Node, ...]:
    """The nodes of the Ray cluster at an address, including those that its autoscaler may add; without an address this
    machine, without starting Ray. Raises UserError if no compatible cluster answers."""
    if address is None:
        return (_this_machine(),)
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


def _this_machine() -> Node:
    import torch

    device = None
    if count := torch.cuda.device_count():
        device = device_called(torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory)
    return Node(count, device, float(os.cpu_count() or 1))
