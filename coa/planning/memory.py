"""Estimates the peak memory of a learner rank and of an engine from the model's configuration alone, for `--dry-run`
and `coa plan`.

N parameters of w bytes (2 in bfloat16, 4 in float32), T of them trained, P = T / R a rank's share of R ranks', and E
those of the embedding, which is the largest:

    part         where   bytes                           name in DeepSpeed, or description
    process      host    PROCESS                         interpreter, PyTorch, transformers, DeepSpeed
    weights      device  w N; stage 3: w N / R           bit16_groups_flat; lp_param_buffer
    masters      device  4 P; stage 3 in float32: 0      single_partition_of_fp32_groups; fp32_partitioned_groups_flat
    moments      device  8 P                             exp_avg, exp_avg_sq
    gradients    device  4 T; from stage 2 on: 4 P       grad_accum; averaged_gradients; grad_partitions_flat_buffer
    step         device  4 P, at most 4 sub_group_size   single_grad_partition: gradients as the optimizer takes them
    buckets      device  4 B; stage 3: 8 B; and gloo 12  ipg_buckets, reduce_scatter; B = min(T, reduce_bucket_size)
                         stage 3: at least (4 + w) E     a gradient larger than a bucket, and its float32 copy
    gathered     device  stage 3: w min(N, live)         stage3_max_live_parameters, stage3_max_reuse_distance
    reference    device  as weights                      if the algorithm needs it; with adapters: 0
    activations  device  `activation_bytes`              kept for the backward pass
    logits       device  `logits_bytes`                  of a chunk: logits, probabilities, gradients
    publishing   host    2 buckets                       `actors.weights.parts`; the file itself is in shared memory
    snapshot     host    12 P; stages 1, 2: w N more     masters, moments and weights, until a checkpoint is written

Offloading moves masters, moments and step, or weights, to the host. On a CPU all parts are in the host's memory. A
value head counts as parameters. Not counted: fragmentation and the memory of CUDA and NCCL; `USABLE` leaves room for
these.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from coa.learning.algorithms.base import Needs
from coa.learning.packing import PackingConfig
from coa.planning.models import Architecture

GIB = 2**30
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per element of each type of numbers."""
PROCESS = 510 * 2**20
"""Host memory of a process without a model, measured on a CPU."""
KEPT = 1.4
"""Activations kept by a layer, with norms, rotations and gates, as a multiple of the inputs and outputs of its linear
layers: counted for Qwen3."""
SUB_GROUP_ELEMENTS = 20_000_000
"""Elements that the optimizer steps together in ZeRO-3, from one flat copy of their gradients."""
VERSIONS_IN_MEMORY = 3
"""Maximum versions of the weights in a node's shared memory: two that are kept, and one being written."""
USABLE = 0.92
"""Usable share of a GPU's memory, for a learner. Assumed: CUDA, NCCL and fragmentation take the rest."""
PREFILL_TOKENS = 8192
"""Maximum tokens that an engine computes at a time (`max_num_batched_tokens` of vLLM)."""
GRAPHS = GIB
"""Memory of an engine's CUDA graphs. An assumption."""
ASLEEP = GRAPHS
"""GPU memory that a sleeping engine keeps: its CUDA graphs."""
PASSING = ("step", "gathered", "activations", "logits")
"""Parts of a rank's device memory that exist only within a step."""


class AdapterSettings(Protocol):
    """The settings of adapters that determine their memory (`actors.learner.config.LoraConfig`)."""

    @property
    def rank(self) -> int: ...
    @property
    def targets(self) -> Collection[str]: ...


class LearnerSettings(Protocol):
    """The learner's settings that determine its memory (`actors.learner.config.LearnerConfig`)."""

    @property
    def ranks(self) -> int: ...
    @property
    def sequence_parallel(self) -> int: ...
    @property
    def packing(self) -> PackingConfig: ...
    @property
    def zero_stage(self) -> int: ...
    @property
    def offload_optimizer(self) -> bool: ...
    @property
    def offload_parameters(self) -> bool: ...
    @property
    def reduce_bucket_size(self) -> int: ...
    @property
    def max_live_parameters(self) -> int: ...
    @property
    def gradient_checkpointing(self) -> bool: ...
    @property
    def lora(self) -> AdapterSettings: ...
    @property
    def logits_bytes(self) -> int: ...


def trained_parameters(built: Architecture, config: LearnerSettings) -> int:
    if not config.lora.rank:
        return built.parameters
    adapted = [one for one in built.adapted if one[0].rpartition(".")[2] in config.lora.targets]
    return sum(config.lora.rank * (inputs + outputs) for _, inputs, outputs in adapted)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Peak memory of one rank in bytes, by part."""

    device: dict[str, int]
    host: dict[str, int]

    @property
    def on_device(self) -> int:
        return sum(self.device.values())

    @property
    def resting(self) -> int:
        """Device memory between two steps."""
        return sum(count for name, count in self.device.items() if name not in PASSING)

    @property
    def on_host(self) -> int:
        return sum(self.host.values())


def rank_memory(
    built: Architecture,
    config: LearnerSettings,
    dtype: str,
    *,
    longest: int = 0,
    needs: Needs | None = None,
    bucket_bytes: int = 0,
    gpu: bool = True,
) -> RankMemory:
    """Memory of the rank that needs most. longest: tokens of the longest sample, which has a row of its own if it is
    longer than `row_tokens`. needs: the algorithm's. bucket_bytes: of published weights, 0 if none are published. gpu:
    whether ranks have GPUs and communicate over NCCL; else over gloo, which reduces a copy."""
    needs = needs or Needs()
    width, ranks, stage = width_of(dtype), config.ranks, config.zero_stage
    tokens = tokens_of_rank(config, longest)
    head = built.hidden + 1 if needs.values else 0
    trained = trained_parameters(built, config) + head
    n = built.parameters + head + (trained if config.lora.rank else 0)
    share, bucket = trained // ranks, min(trained, config.reduce_bucket_size)
    weights = width * n // (ranks if stage == 3 else 1)
    optimizer = {
        "masters": 0 if stage == 3 and width == 4 else 4 * share,
        "moments": 8 * share,
        "step": 4 * min(share, SUB_GROUP_ELEMENTS),
    }
    device = {
        "gradients": 4 * (trained if stage == 1 else share),
        "buckets": buckets_bytes(built, config, dtype, bucket, gpu=gpu),
        "gathered": width * min(n, config.max_live_parameters) if stage == 3 else 0,
        "reference": weights if needs.reference and not config.lora.rank else 0,
        "activations": activation_bytes(built, config, dtype, tokens),
        "logits": logits_bytes(built, config, dtype, tokens),
    }
    host = {
        "process": PROCESS,
        "publishing": 2 * bucket_bytes,
        "snapshot": 12 * share + (width * n if stage < 3 else 0),
    }
    (host if config.offload_parameters else device)["weights"] = weights
    (host if config.offload_optimizer else device).update(optimizer)
    return RankMemory(device, host)


def buckets_bytes(built: Architecture, config: LearnerSettings, dtype: str, bucket: int, *, gpu: bool) -> int:
    """bucket: elements that are reduced at a time."""
    if config.zero_stage < 3:
        return 4 * bucket
    embedding = built.vocabulary * built.hidden
    alone = 0 if config.lora.rank or embedding <= bucket else (4 + width_of(dtype)) * embedding
    return max(4 * bucket * (2 if gpu else 3), alone)


def activation_bytes(built: Architecture, config: LearnerSettings, dtype: str, tokens: int) -> int:
    """Activations of a micro-batch, or a rank's slice of it, that all layers keep for the backward pass; with gradient
    checkpointing the inputs of all layers, and the activations of the one layer that is recomputed."""
    layer = KEPT * built.kept + built.hidden
    kept = built.layers * built.hidden + layer if config.gradient_checkpointing else built.layers * layer
    return width_of(dtype) * tokens * int(kept)


def tokens_of_rank(config: LearnerSettings, longest: int) -> int:
    """Tokens of the largest micro-batch that one rank computes: its rows are as wide as the longest of them."""
    return -(-max(config.packing.row_tokens, longest) * config.packing.rows // config.sequence_parallel)


def logits_bytes(built: Architecture, config: LearnerSettings, dtype: str, tokens: int) -> int:
    """Memory of a chunk of positions: float32 logits or their gradient, their probabilities, and in bfloat16 the output
    layer's result."""
    chunk = min(tokens, max(1, config.logits_bytes // (4 * built.vocabulary)))
    return chunk * built.vocabulary * (8 if dtype == "float32" else 10)


def shared_memory_bytes(built: Architecture, dtype: str) -> int:
    """Shared memory for published weights on a node with learner ranks or engines."""
    return VERSIONS_IN_MEMORY * width_of(dtype) * built.parameters


# --- engines ----------------------------------------------------------------------------------------------------------


def engine_bytes(built: Architecture, dtype: str, tensor_parallel: int) -> int:
    """Weights on one GPU of an engine."""
    return width_of(dtype) * built.parameters // tensor_parallel


def kv_bytes(built: Architecture, dtype: str, tensor_parallel: int) -> int:
    """Keys and values of one token on one GPU of an engine. Heads are not split: with fewer key-value heads than GPUs,
    each GPU has one."""
    heads = max(1, built.kv_heads // tensor_parallel)
    return width_of(dtype) * built.kv_elements * heads // built.kv_heads


def workspace_bytes(built: Architecture, dtype: str, tensor_parallel: int, max_concurrent: int) -> int:
    """Memory of an engine on one GPU besides weights and cache: one layer's activations of a prefill, float32 logits
    and probabilities of one token per request, and CUDA graphs. Not measured."""
    activations = width_of(dtype) * PREFILL_TOKENS * (2 * built.hidden + built.kept // tensor_parallel)
    return activations + 8 * max_concurrent * built.vocabulary + GRAPHS


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Memory of one GPU of an engine, in bytes; on a CPU, of the engine."""

    weights: int
    workspace: int
    kv_cache: int
    """Memory left for the KV cache; below 0 if weights and workspace are too large."""
    kv_token: int
    """Memory of one token in the cache."""

    @property
    def tokens(self) -> int:
        """Maximum number of tokens in the engine's cache."""
        return max(0, self.kv_cache) // self.kv_token

    @property
    def total(self) -> int:
        return self.weights + self.workspace + max(0, self.kv_cache)


def engine_memory(
    built: Architecture, dtype: str, *, tensor_parallel: int, max_concurrent: int, given: int
) -> EngineMemory:
    """given: bytes of a GPU that the engine may use (`gpu_memory_utilization` of its memory)."""
    weights = engine_bytes(built, dtype, tensor_parallel)
    workspace = workspace_bytes(built, dtype, tensor_parallel, max_concurrent)
    token = kv_bytes(built, dtype, tensor_parallel)
    return EngineMemory(weights, workspace, given - weights - workspace, token)


def width_of(dtype: str) -> int:
    """Bytes per element."""
    return WIDTHS[dtype]
