"""How much memory a rank of a learner and an engine take at their peak, from the model's configuration alone: the one
estimate behind `--dry-run` and `coa plan`.

N parameters of w bytes (2 in bfloat16, 4 in float32), T of them trained, P = T / R a rank's share of R ranks':

    part         where   bytes                           name in DeepSpeed, or what it is
    process      host    PROCESS                         interpreter, PyTorch, transformers, DeepSpeed
    weights      device  w N; stage 3: w N / R           bit16_groups_flat; lp_param_buffer
    masters      device  4 P; stage 3 in float32: 0      single_partition_of_fp32_groups; fp32_partitioned_groups_flat
    moments      device  8 P                             exp_avg, exp_avg_sq
    gradients    device  4 T; from stage 2 on: 4 P       grad_accum; averaged_gradients; grad_partitions_flat_buffer
    step         device  4 P, at most 4 sub_group_size   single_grad_partition: gradients as the optimizer takes them
    buckets      device  4 B; stage 3: 8 B; and gloo 12  ipg_buckets, reduce_scatter; B = min(T, reduce_bucket_size)
    gathered     device  stage 3: w min(N, live)         stage3_max_live_parameters, stage3_max_reuse_distance
    reference    device  as weights                      where the algorithm needs it; with adapters: 0
    activations  device  `activation_bytes`              what layers keep for the way back
    logits       device  `logits_bytes`                  of a chunk: logits, probabilities, gradients
    publishing   host    2 buckets                       `actors.weights.parts`; the file itself is in shared memory
    snapshot     host    12 P; stages 1, 2: w N more     masters, moments and weights, until a checkpoint is written

Offloading moves masters, moments and step, or weights, to the host. On a CPU all of it is in the host's memory. A value
head is among the parameters. Not counted: what allocators lose to fragments, and what CUDA and NCCL keep themselves;
`USABLE` leaves room for these.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from coa.learning.algorithms.base import Needs
from coa.planning.models import Architecture

GIB = 2**30
PROCESS = 510 * 2**20
"""Measured on a CPU, without a model."""
KEPT = 1.4
"""Of what the linear layers of a layer take and give, so much is kept, with norms, rotations and gates: counted for
Qwen3."""
SUB_GROUP_ELEMENTS = 20_000_000
"""That the optimizer steps together in ZeRO-3, from one flat copy of their gradients."""
VERSIONS_IN_MEMORY = 3
"""Versions of the weights that a node's shared memory holds at most: the two that are kept, and one being written."""
USABLE = 0.92
"""Share of a GPU's memory that is counted on, for a learner. Assumed: CUDA, NCCL and fragments take the rest."""
PREFILL_TOKENS = 8192
"""That an engine on a GPU computes at a time: vLLM's own default there (`max_num_batched_tokens`)."""
GRAPHS = GIB
"""For CUDA graphs of an engine. An assumption."""
ASLEEP = GRAPHS
"""What an engine keeps of its GPU while it sleeps, which is its graphs."""
PASSING = ("step", "gathered", "activations", "logits")
"""Parts of a rank's memory on its device that are there within a step only."""


class LearnerSettings(Protocol):
    """What of a learner's settings decides about memory (`actors.learner.config.LearnerConfig`)."""

    @property
    def ranks(self) -> int: ...
    @property
    def sequence_parallel(self) -> int: ...
    @property
    def packing(self) -> Any: ...
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
    def lora(self) -> Any: ...
    @property
    def logits_bytes(self) -> int: ...


def trained_parameters(built: Architecture, config: LearnerSettings) -> int:
    if not config.lora.rank:
        return built.parameters
    adapted = [one for one in built.adapted if one[0].rpartition(".")[2] in config.lora.targets]
    return sum(config.lora.rank * (inputs + outputs) for _, inputs, outputs in adapted)


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one rank at its peak, part by part."""

    device: dict[str, int]
    host: dict[str, int]

    @property
    def on_device(self) -> int:
        return sum(self.device.values())

    @property
    def resting(self) -> int:
        """On the device between two steps."""
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
    """Of the rank that has most. longest: tokens of the longest sample, which has a row of its own if it is longer than
    `row_tokens`. needs: the algorithm's. bucket_bytes: of published weights, 0 where there are none. gpu: whether ranks
    have one, and talk over NCCL, or over gloo, which reduces a copy."""
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
        "buckets": 4 * bucket * (1 if stage < 3 else 2 if gpu else 3),
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


def activation_bytes(built: Architecture, config: LearnerSettings, dtype: str, tokens: int) -> int:
    """Of a micro-batch, or a rank's slice of it: what all layers keep for the way back; with gradient checkpointing the
    inputs of all layers, and what one of them keeps while it is computed again."""
    layer = KEPT * built.kept + built.hidden
    kept = built.layers * built.hidden + layer if config.gradient_checkpointing else built.layers * layer
    return width_of(dtype) * tokens * int(kept)


def tokens_of_rank(config: LearnerSettings, longest: int) -> int:
    """Of the largest micro-batch, that one rank computes: its rows are as wide as the longest of them."""
    return -(-max(config.packing.row_tokens, longest) * config.packing.rows // config.sequence_parallel)


def logits_bytes(built: Architecture, config: LearnerSettings, dtype: str, tokens: int) -> int:
    """Of a chunk of positions: float32 logits or their gradient, their probabilities, and in bfloat16 what the output
    layer gave."""
    chunk = min(tokens, max(1, config.logits_bytes // (4 * built.vocabulary)))
    return chunk * built.vocabulary * (8 if dtype == "float32" else 10)


def shared_memory_bytes(built: Architecture, dtype: str) -> int:
    """Of a node with learner ranks or engines, for published weights alone."""
    return VERSIONS_IN_MEMORY * width_of(dtype) * built.parameters


# --- engines ----------------------------------------------------------------------------------------------------------


def engine_bytes(built: Architecture, dtype: str, tensor_parallel: int) -> int:
    """Weights on one GPU of an engine."""
    return width_of(dtype) * built.parameters // tensor_parallel


def kv_bytes(built: Architecture, dtype: str, tensor_parallel: int) -> int:
    """Keys and values of one token on one GPU of an engine. A head is never cut: with fewer key-value heads than GPUs,
    each of these has one."""
    heads = max(1, built.kv_heads // tensor_parallel)
    return width_of(dtype) * built.kv_elements * heads // built.kv_heads


def workspace_bytes(built: Architecture, dtype: str, tensor_parallel: int, max_concurrent: int) -> int:
    """What an engine takes on one GPU beside weights and cache: activations of one prefill, of a layer at a time,
    logits and probabilities of a token of each request in float32, and graphs. Not measured."""
    activations = width_of(dtype) * PREFILL_TOKENS * (2 * built.hidden + built.kept // tensor_parallel)
    return activations + 8 * max_concurrent * built.vocabulary + GRAPHS


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """Of one GPU of an engine, in bytes; on a CPU, of the engine."""

    weights: int
    workspace: int
    kv_cache: int
    """What is left for it; below 0 where weights and workspace are too large."""
    kv_token: int
    """Of one token in the cache."""

    @property
    def tokens(self) -> int:
        """That the cache of the engine holds."""
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
    """Bytes of a number."""
    return 2 if dtype == "bfloat16" else 4
