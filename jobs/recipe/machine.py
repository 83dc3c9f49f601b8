"""Whether this machine has the memory that a recipe's processes need, where it is the cluster."""

import math
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from actors.learner.config import LearnerConfig
from actors.learner.sizes import architecture
from actors.weights.ipc import NAME as IPC
from actors.weights.segment import SHARED_MEMORY
from cluster.resources import this_node
from cluster.session import address_of
from coa.errors import UserError
from coa.planning.memory import GIB, PROCESS, VERSIONS_IN_MEMORY, shared_memory_bytes
from coa.planning.models import Architecture
from coa.reporting.readable import in_bytes
from jobs.recipe.findings import Finding
from jobs.recipe.memory import Process, mistakes, processes
from jobs.recipe.needs import has_episodes, memory_of_rank
from jobs.recipe.schema import Recipe

CERTAIN = ("process", "weights", "masters", "moments", "gradients", "reference")
"""Parts of a rank's memory that are taken whatever the samples are; the others are estimates."""
LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container."""


def memory_here(limits: Iterable[str] = LIMITS) -> int:
    """Bytes of memory that processes of this machine, or of this container, may take together, swap included."""
    most = psutil.virtual_memory().total + psutil.swap_memory().total
    for path in map(Path, limits):
        if path.exists() and (text := path.read_text().strip()).isdecimal():
            most = min(most, int(text))
    return most


def memory_of(config: Recipe, stages: Iterable[str], here: int | None = None) -> Iterator[Finding]:
    """Findings about memory if this machine is the cluster; raises UserError for what can't fit. here: bytes of
    this machine."""
    if address_of(config.session) is not None:
        yield Finding.unseen("the memory of the cluster's nodes")
        return
    if (built := architecture(config.model)) is None:
        yield Finding.unseen(f"memory, since the sizes of {config.model.path} are not known here")
        return
    if (config.placement.learner_gpus or config.placement.engine_gpus) and not this_node(config.session.cpus)["GPU"]:
        yield Finding.unseen("memory, since this machine has no GPU")  # which `check_room` refuses
        return
    here, stages = memory_here() if here is None else here, set(stages)
    found = processes(config, built, None)
    if has_episodes(stages) and not config.placement.engine_gpus:
        for mistake in mistakes(config, found, None):
            raise UserError(mistake)
    for stage, learner in (("sft", config.sft.learner), ("rl", config.rl.learner)):
        if stage in stages:
            yield _on_host(config, stage, learner, built, found[-1] if stage == "rl" else None, here)
    if "rl" in stages and config.rl.weights.transport != IPC:  # which keeps no version there, but where it falls back
        yield _in_shared_memory(built, config.model.dtype)
    if config.placement.learner_gpus and stages & {"sft", "rl"}:
        yield from _on_gpu(config, built)


def _in_shared_memory(built: Architecture, dtype: str) -> Finding:
    """Raises UserError if the versions of the weights that are kept at a time are more than what it holds at most."""
    needed, there = shared_memory_bytes(built, dtype), shutil.disk_usage(SHARED_MEMORY)
    what = f"{VERSIONS_IN_MEMORY} versions of the weights take {in_bytes(needed)}"
    size = f"mount -o remount,size={math.ceil(1.1 * needed / GIB) + 2}G {SHARED_MEMORY}  (Docker: --shm-size)"
    if needed > there.total:
        raise UserError(f"rl: {what} of shared memory, and {SHARED_MEMORY} has {in_bytes(there.total)}: {size}")
    caution = ""
    if needed > there.free:
        caution = f"caution: {what} of shared memory, and {in_bytes(there.free)} are free in {SHARED_MEMORY}"
    return Finding(f"shared memory (about {in_bytes(needed)} of {in_bytes(there.free)})", caution)


def _on_host(
    config: Recipe, stage: str, learner: LearnerConfig, built: Architecture, engine: Process | None, here: int
) -> Finding:
    """engine: one that runs beside the learners, as it would be on a CPU."""
    place, rank = config.placement, memory_of_rank(config, stage, learner, built)
    parts = Counter(rank.host) if place.learner_gpus else Counter(rank.host) + Counter(rank.device)
    certain = learner.ranks * sum(count for name, count in parts.items() if name in CERTAIN)
    estimate = learner.ranks * parts.total()
    what = f"{learner.ranks} learner rank{'s' * (learner.ranks != 1)}"
    if engine is not None:
        workers = 0 if place.engine_gpus else config.engine.tensor_parallel
        certain += place.engines * (PROCESS + workers * engine.parts["weights"])
        estimate += place.engines * (PROCESS + workers * engine.total)
        estimate += shared_memory_bytes(built, config.model.dtype)
        what += f" and {place.engines} engine{'s' * (place.engines != 1)}"
    helps = "take a smaller model, train adapters (lora.rank), or use a machine with more memory"
    if certain > here:
        raise UserError(
            f"{stage}: {what} need at least {in_bytes(certain)} of memory, more than the {in_bytes(here)} of this "
            f"machine: {helps}"
        )
    caution = ""
    if estimate > here:
        caution = (
            f"caution: {stage} may run out of memory: {what} need an estimated {in_bytes(estimate)}, and this machine "
            f"has {in_bytes(here)}; if so, {helps}"
        )
    return Finding(f"memory for {stage} (about {in_bytes(estimate)} of {in_bytes(here)})", caution)


def _on_gpu(config: Recipe, built: Architecture) -> Iterator[Finding]:
    from cluster.resources import present_nodes

    [node] = present_nodes(None)
    if node.device is None:
        yield Finding.unseen("the memory of this machine's GPUs, whose kind is not known")
        return
    found = processes(config, built, node.device if config.placement.engine_gpus else None)
    wrong = list(mistakes(config, found, node.device))
    caution = f"caution: by an estimate, {wrong[0]}" if wrong else ""
    yield Finding(f"memory of a {node.device.name}", caution)
