"""How large a model is, and how much memory a rank of its learner takes at its peak, from its configuration alone.

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
head is among the parameters. Not counted: what allocators lose to fragments, and what CUDA and NCCL keep themselves.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.learner.config import SUB_GROUP_ELEMENTS, LearnerConfig, ModelConfig
from coa.errors import UserError
from coa.learning.algorithms.base import Needs

GIB = 2**30
PROCESS = 510 * 2**20
"""Measured on a CPU, without a model."""
KEPT = 1.4
"""Of what the linear layers of a layer take and give, so much is kept, with norms, rotations and gates: counted for
Qwen3."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What of a model's configuration decides about memory."""

    parameters: int
    adapted: tuple[tuple[str, int, int], ...]
    """Name of each linear layer, its inputs and its outputs."""
    layers: int
    hidden: int
    vocabulary: int
    kept: int
    """Elements that one layer keeps of a token for its way back: inputs and outputs of its linear layers."""


def hub_name(path: str) -> bool:
    """Whether it may name a model of a hub, `NAME` or `OWNER/NAME`, where no folder has that name."""
    return not Path(path).exists() and not path.startswith((".", "/", "~")) and path.count("/") < 2


def local_configuration(model: ModelConfig) -> Any | None:
    """The configuration of a model that is on this machine, or None: nothing is fetched."""
    if model.path is None:
        return _new(model)
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoConfig

    folder = Path(model.path)
    if not (folder / "config.json").is_file():
        if not hub_name(model.path):
            return None
        found = try_to_load_from_cache(model.path, "config.json")
        if not isinstance(found, str):
            return None
        folder = Path(found).parent
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{model.path}: no configuration that can be read ({str(error).splitlines()[0]})") from error


def _new(model: ModelConfig) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=model.vocabulary_limit,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        head_dim=model.head_dim,
        tie_word_embeddings=False,
    )


def architecture(configuration: Any) -> Architecture:
    """Counted on a model without storage, whose embeddings are untied as they are for training."""
    import torch
    from transformers import AutoModelForCausalLM

    text = configuration.get_text_config()
    configuration.tie_word_embeddings = text.tie_word_embeddings = False
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(configuration)
    except ValueError as error:
        raise UserError(f"{configuration.model_type}: no causal language model") from error
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    head = model.get_output_embeddings()
    kept = sum(module.in_features + module.out_features for _, module in linear if module is not head)
    return Architecture(
        parameters=sum(p.numel() for p in model.parameters()),
        adapted=tuple((name, module.in_features, module.out_features) for name, module in linear),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        kept=kept // text.num_hidden_layers,
    )


def trained_parameters(built: Architecture, config: LearnerConfig) -> int:
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
    def on_host(self) -> int:
        return sum(self.host.values())


def rank_memory(
    built: Architecture,
    config: LearnerConfig,
    dtype: str,
    *,
    needs: Needs | None = None,
    bucket_bytes: int = 0,
    gpu: bool = True,
) -> RankMemory:
    """Of the rank that has most. needs: the algorithm's. bucket_bytes: of published weights, 0 where there are none.
    gpu: whether ranks have one, and talk over NCCL, or over gloo, which reduces a copy."""
    needs = needs or Needs()
    width, ranks, stage = _width(dtype), config.ranks, config.zero_stage
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
        "activations": activation_bytes(built, config, dtype),
        "logits": logits_bytes(built, config, dtype),
    }
    host = {
        "process": PROCESS,
        "publishing": 2 * bucket_bytes,
        "snapshot": 12 * share + (width * n if stage < 3 else 0),
    }
    (host if config.offload_parameters else device)["weights"] = weights
    (host if config.offload_optimizer else device).update(optimizer)
    return RankMemory(device, host)


def activation_bytes(built: Architecture, config: LearnerConfig, dtype: str) -> int:
    """Of a micro-batch: what all layers keep for the way back; with gradient checkpointing the inputs of all layers,
    and what one of them keeps while it is computed again."""
    tokens = config.packing.row_tokens * config.packing.rows
    layer = KEPT * built.kept + built.hidden
    kept = built.layers * built.hidden + layer if config.gradient_checkpointing else built.layers * layer
    return _width(dtype) * tokens * int(kept)


def logits_bytes(built: Architecture, config: LearnerConfig, dtype: str) -> int:
    """Of a chunk of positions: float32 logits or their gradient, their probabilities, and in bfloat16 what the output
    layer gave."""
    tokens = config.packing.row_tokens * config.packing.rows
    chunk = min(tokens, max(1, config.logits_bytes // (4 * built.vocabulary)))
    return chunk * built.vocabulary * (8 if dtype == "float32" else 10)


VERSIONS_IN_MEMORY = 3
"""Versions of the weights that a node's shared memory holds at most: the two that are kept, and one being written."""


def shared_memory_bytes(built: Architecture, dtype: str) -> int:
    """Of a node with learner ranks or engines, for published weights alone."""
    return VERSIONS_IN_MEMORY * _width(dtype) * built.parameters


def engine_bytes(built: Architecture, dtype: str, tensor_parallel: int) -> int:
    """Weights on one GPU of an engine; its KV cache takes what is left of its share."""
    return _width(dtype) * built.parameters // tensor_parallel


def _width(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4
