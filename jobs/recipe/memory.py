"""GPU memory of each process of a recipe, and which processes do not fit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil

from coa.planning.clusters import Device
from coa.planning.memory import ASLEEP, GIB, USABLE, EngineMemory, RankMemory, engine_memory
from coa.planning.models import Architecture
from coa.reporting.readable import in_bytes
from jobs.recipe.needs import memory_of_rank
from jobs.recipe.schema import Recipe

PARTS = ("weights", "optimizer", "gradients", "activations", "KV cache")
PART_OF = {
    "weights": "weights",
    "gathered": "weights",
    "reference": "weights",
    "masters": "optimizer",
    "moments": "optimizer",
    "step": "optimizer",
    "gradients": "gradients",
    "buckets": "gradients",
    "activations": "activations",
    "logits": "activations",
}
"""Row of the table (PARTS) to which each part of `RankMemory.device` is added."""
SFT, RL, ENGINE = "sft rank", "rl rank", "engine"


@dataclass(frozen=True, slots=True)
class Process:
    """The memory of one process, on its GPU or, if it has none, on its node."""

    what: str
    parts: Mapping[str, int]
    """Bytes by the names in PARTS."""
    host: int
    """Bytes of its node's memory, in addition to `parts`."""
    engine: EngineMemory | None = None
    resting: int = 0
    """Bytes that it keeps on the GPU while another process has its turn (`engine.sleep_mode`)."""

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def processes(config: Recipe, built: Architecture, device: Device | None) -> list[Process]:
    """[sft rank, rl rank, engine]. device: the GPU of engines; None if they have none."""
    found = [
        _rank(what, memory_of_rank(config, stage, learner, built))
        for what, stage, learner in ((SFT, "sft", config.sft.learner), (RL, "rl", config.rl.learner))
    ]
    return [*found, _engine(config, built, device)]


def _rank(what: str, memory: RankMemory) -> Process:
    parts: dict[str, int] = dict.fromkeys(PARTS, 0)
    for name, count in memory.device.items():
        parts[PART_OF[name]] += count
    return Process(what, parts, memory.on_host, resting=memory.resting)


def _engine(config: Recipe, built: Architecture, device: Device | None) -> Process:
    settings = config.engine
    given = int(settings.kv_cache_gib * GIB)
    if device is not None:
        given = int(settings.gpu_memory_utilization * device.memory)
    memory = engine_memory(
        built,
        settings.dtype,
        tensor_parallel=settings.tensor_parallel,
        max_concurrent=settings.max_concurrent,
        given=given,
    )
    if device is None:  # on a CPU, the size of the cache does not depend on the weights
        memory = EngineMemory(memory.weights, 0, given, memory.kv_token)
    parts = {"weights": memory.weights, "activations": memory.workspace, "KV cache": max(0, memory.kv_cache)}
    sleeps = settings.sleep_mode and device is not None
    kept = memory.weights if sleeps else 0  # in the host's memory while the engine sleeps
    asleep = ASLEEP if sleeps else memory.total
    return Process(ENGINE, {name: parts.get(name, 0) for name in PARTS}, kept, memory, asleep)


def mistakes(config: Recipe, found: list[Process], device: Device | None) -> Iterator[str]:
    """A sentence for each process that does not fit, with the settings that would help."""
    sft, rl, engine = found
    memory, place = engine.engine, config.placement
    assert memory is not None
    if place.engine_gpus and device is not None and memory.kv_cache <= 0:
        share = config.engine.gpu_memory_utilization
        given = in_bytes(memory.weights + memory.workspace + memory.kv_cache)
        yield (
            f"an engine needs {in_bytes(memory.weights)} for weights and {in_bytes(memory.workspace)} of workspace, "
            f"which leaves no KV cache of the {given} that engine.gpu_memory_utilization={share:g} gives it on a "
            f"{device.name}: raise that setting, or engine.tensor_parallel"
        )
    elif memory.tokens < (longest := config.agent.limits.max_tokens):
        helps = "engine.gpu_memory_utilization or engine.tensor_parallel"
        if not place.engine_gpus:
            helps = f"engine.kv_cache_gib to {ceil(100 * longest * memory.kv_token / GIB) / 100}"
        yield (
            f"the KV cache of an engine holds {memory.tokens} tokens, less than one episode of "
            f"agent.limits.max_tokens={longest}: raise {helps}"
        )
    if not place.learner_gpus or device is None:
        return
    shared = place.engine_gpus > 0 and place.engine_gpus + place.learner_gpus <= 1
    turns = config.engine.sleep_mode
    if shared and turns and engine.total + rl.resting > (limit := int(USABLE * device.memory)):
        yield (
            f"an engine needs {in_bytes(engine.total)} beside the {in_bytes(rl.resting)} of a waiting rl rank, more "
            f"than the {in_bytes(limit)} that are usable on a {device.name}: {HELPS['KV cache']}"
        )
    for rank in (sft, rl):
        beside = (engine.resting if turns else engine.total) if shared and rank is rl else 0
        if rank.total + beside > (limit := int(USABLE * device.memory)):
            with_engine = f" beside an engine of {in_bytes(beside)}{' asleep' * turns}" if beside else ""
            largest = max(rank.parts, key=rank.parts.__getitem__)
            yield (
                f"a {rank.what} needs {in_bytes(rank.total)}{with_engine}, more than the {in_bytes(limit)} that are "
                f"usable on a {device.name}: most is for {largest} ({in_bytes(rank.parts[largest])}); "
                f"{HELPS[largest]}"
            )


HELPS = {
    "weights": "shard them with zero_stage=3 or over more ranks, or train adapters with lora.rank",
    "optimizer": "use more ranks, offload_optimizer, or adapters with lora.rank",
    "gradients": "shard them with zero_stage=2 and more ranks, or lower reduce_bucket_size",
    "activations": "gradient_checkpointing, shorter rows (row_tokens, max_tokens) or a larger sequence_parallel helps",
    "KV cache": "lower engine.gpu_memory_utilization",
}
