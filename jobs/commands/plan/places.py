"""Where the parts of a recipe would run, the memory of each, and what does not fit."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from actors.learner.sizes import architecture
from cluster.resources import Demand, placed
from coa.errors import UserError
from coa.planning.clusters import Device, Node
from coa.reporting.readable import DASH, in_bytes, number
from jobs.recipe.dry_run import Section
from jobs.recipe.memory import PARTS, Process, mistakes, processes
from jobs.recipe.needs import reinforcement_demands, sft_demands
from jobs.recipe.schema import Recipe


class Plan(NamedTuple):
    sections: list[Section]
    mistakes: list[str]
    """A sentence for each thing that does not fit."""
    unknown: list[str]
    """A sentence for each reason for which it is not known whether everything fits."""


def plan_of(config: Recipe, nodes: Sequence[Node]) -> Plan:
    demands = {"sft": sft_demands(config), "rl": _demands(config)}
    found = {stage: placed(wanted, [node.resources for node in nodes]) for stage, wanted in demands.items()}
    unknown: list[str] = []
    wrong = [sentence for stage, places in found.items() for sentence in _without_place(stage, places, nodes)]
    sections = [
        Section(
            f"{stage}: what runs where, on {_cluster(nodes)}",
            ("node", "what", "CPU", "GPU"),
            tuple(_rows(places, nodes)),
        )
        for stage, places in found.items()
    ]
    built, device = architecture(config.model), smallest(nodes)
    on_gpu = config.placement.learner_gpus > 0 or config.placement.engine_gpus > 0
    if built is None:
        unknown.append(
            f"memory is not estimated: the configuration of {config.model.path} is neither on this machine nor among "
            "the published ones"
        )
    elif on_gpu and device is None:
        unknown.append(
            "memory is not estimated: that of this kind of GPU is not known; name a cluster, such as --cluster 1x8xH100"
        )
    else:
        parts = processes(config, built, device if config.placement.engine_gpus else None)
        sections.append(_memory(parts, device if on_gpu else None, turns=config.engine.sleep_mode))
        wrong += mistakes(config, parts, device)
    return Plan(sections, wrong, unknown)


def _demands(config: Recipe) -> list[Demand]:
    try:
        return reinforcement_demands(config)
    except UserError as error:
        raise UserError(f"the resources of the stage rl are not known: {error}") from error


def smallest(nodes: Sequence[Node]) -> Device | None:
    """The GPU with the least memory; None if there are no GPUs, or if one is of an unknown kind."""
    devices = [node.device for node in nodes if node.gpus]
    known = [device for device in devices if device is not None]
    return min(known, key=lambda device: device.memory) if known and len(known) == len(devices) else None


def _cluster(nodes: Sequence[Node]) -> str:
    kinds = Counter(_kind(node) for node in nodes)
    return " and ".join(f"{count} x {kind}" if count > 1 else kind for kind, count in kinds.items())


def _kind(node: Node) -> str:
    name = node.device.name if node.device else "GPU"
    return f"{node.gpus} {name}" if node.gpus else f"{node.cpus:g} CPU"


def _rows(places: Sequence[tuple[Demand, int | None]], nodes: Sequence[Node]) -> Iterator[tuple[str, ...]]:
    """A row for each sequence of nodes that hold the same processes."""
    held = [Counter(demand.what for demand, at in places if at == index) for index in range(len(nodes))]
    resources = {demand.what: demand.resources for demand, _ in places}
    first = 0
    for index in range(1, len(nodes) + 1):
        if index < len(nodes) and (held[index], nodes[index]) == (held[first], nodes[first]):
            continue
        name = str(first + 1) if index - first == 1 else f"{first + 1} to {index}"
        what = ", ".join(f"{n} {one}{'s' * (n != 1)}" for one, n in held[first].items()) or "nothing"
        sums = (sum(n * resources[one].get(of, 0) for one, n in held[first].items()) for of in ("CPU", "GPU"))
        yield (name, what, *(f"{amount:g}" for amount in sums))
        first = index


def _without_place(stage: str, places: Sequence[tuple[Demand, int | None]], nodes: Sequence[Node]) -> Iterator[str]:
    missing = Counter((demand.what, tuple(sorted(demand.resources.items()))) for demand, at in places if at is None)
    total = sum(demand.resources.get("GPU", 0) for demand, _ in places)
    for (what, resources), count in missing.items():
        each = " and ".join(f"{amount:g} {name}" for name, amount in resources if amount) or "nothing"
        yield (
            f"{stage}: no node has room for {count} {what}{'s' * (count != 1)} of {each}; the stage needs {total:g} "
            f"GPUs, there are {sum(node.gpus for node in nodes)}"
        )


def _memory(found: Sequence[Process], device: Device | None, *, turns: bool) -> Section:
    where = f"memory of a GPU ({device.name}: {in_bytes(device.memory)})" if device else "memory"
    rows = [(part, *(_bytes(one.parts[part]) for one in found)) for part in PARTS]
    rows.append(("in all", *(_bytes(one.total) for one in found)))
    if turns:
        rows.append(("while another runs", *(_bytes(one.resting) for one in found)))
    rows.append(("memory of its node", *(_bytes(one.host) for one in found)))
    rows.append(("tokens in the cache", *(number(one.engine.tokens) if one.engine else DASH for one in found)))
    return Section(where, ("", *(one.what for one in found)), tuple(rows))


def _bytes(count: int) -> str:
    return in_bytes(count) if count else DASH
