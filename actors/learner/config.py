"""Settings of a learner: its model, optimizer and loss, its rows, how a large model fits, and what it learns by.

Nothing here imports torch: every command reads these settings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from coa.learning.algorithms import DEFAULT
from coa.learning.losses import LossConfig
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig

LOGITS_BYTES = 1 << 29
"""Of a chunk's float32 logits. Where all of them are fewer, they are computed once and kept."""


@dataclass(frozen=True)
class ModelConfig:
    """Where the policy comes from: a Hugging Face model, or a new one of the Qwen3 architecture."""

    path: str | None = None
    """Folder or hub name of a pretrained model; None makes a new model of the sizes below."""
    hidden_size: int = 128
    """Width of the residual stream of a new model."""
    layers: int = 4
    """Transformer layers of a new model."""
    heads: int = 4
    """Attention heads of a layer."""
    key_value_heads: int = 2
    """Heads of keys and values, which query heads share."""
    head_dim: int = 32
    """Width of one head."""
    intermediate_size: int = 256
    """Width of the feed-forward layer."""
    rope_theta: float = 10_000.0
    """Base of the rotary position embedding."""
    max_positions: int = 1024
    """Longest sequence of a new model, in tokens."""
    initializer_range: float = 0.02
    """Standard deviation of a new model's weights."""
    vocabulary_limit: int = 4096
    """Most tokens that the tokenizer trained for a new model may have."""
    dtype: str = "float32"
    """Of the weights that compute and travel. With bfloat16 the optimizer keeps float32 ones of its own."""
    attention: str = "sdpa"
    """sdpa runs everywhere; flash_attention_2 and flex_attention are for GPUs (`actors.learner.attention`)."""

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"model.dtype is {self.dtype}, expected float32 or bfloat16")


@dataclass(frozen=True)
class LoraConfig:
    rank: int = 0
    """Of the adapters; 0 trains the whole model."""
    alpha: float = 32.0
    """The adapters' product is scaled by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get adapters."""


@dataclass(frozen=True)
class ValueHeadConfig:
    """The head that gives values, where an algorithm asks for them. It begins at zero, and learns much faster than a
    pretrained policy may."""

    lr: float = 1e-4
    """Without weight decay; all else of its optimizer and schedule is the policy's."""
    warmup_ratio: float = 0.0
    """Share of the steps, rounded up."""

    def of(self, policy: OptimizerConfig) -> OptimizerConfig:
        return replace(policy, lr=self.lr, warmup_steps=0, warmup_ratio=self.warmup_ratio)


@dataclass(frozen=True)
class LearnerConfig:
    ranks: int = 1
    """Processes of the learner group, which a batch is dealt to."""
    sequence_parallel: int = 1
    """Ranks that share each row of tokens, for rows too long for one of them (DeepSpeed-Ulysses, arXiv 2309.14509); 1
    shares none. A divisor of `ranks`, and of the model's attention heads."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    value_head: ValueHeadConfig = field(default_factory=ValueHeadConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    updates_per_batch: int = 1
    """Optimizer updates of a batch, each on whole groups of its own; the version grows once a batch all the same."""
    zero_stage: int = 1
    """What ranks shard among them: 1 the optimizer's state, 2 gradients too, 3 parameters too."""
    offload_optimizer: bool = False
    """Keeps the optimizer's state in the host's memory, and steps there."""
    offload_parameters: bool = False
    """Keeps parameters in the host's memory until a layer needs them; stage 3 only."""
    reduce_bucket_size: int = 50_000_000
    """Elements of gradients that ranks reduce together: 200 MB of float32, enough for any network's full rate. ZeRO-3
    holds two buckets, and gloo a third."""
    max_live_parameters: int = 1_000_000_000
    """Most parameters that ZeRO-3 keeps gathered, those that are used again soon among them."""
    gradient_checkpointing: bool = False
    """Keeps of each layer its input alone, and computes the rest again on the way back."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    logits_bytes: int = LOGITS_BYTES
    """Of float32 logits that are in memory at a time; where a micro-batch has more, they are computed twice."""
    entropy: bool = True
    """Whether the policy's entropy is measured at each trained token, where its logits are there anyway."""
    threads: int = 1
    """CPU threads of a rank; 0 leaves the choice to PyTorch."""

    def __post_init__(self) -> None:
        if self.sequence_parallel < 1 or self.ranks % self.sequence_parallel:
            shared, ranks = self.sequence_parallel, self.ranks
            raise ValueError(f"learner.sequence_parallel is {shared}, expected a divisor of learner.ranks={ranks}")
        if self.zero_stage not in (1, 2, 3):
            raise ValueError(f"learner.zero_stage is {self.zero_stage}, expected 1 to 3")
        if self.offload_parameters and self.zero_stage != 3:
            raise ValueError("learner.offload_parameters needs learner.zero_stage=3")

    @property
    def replicas(self) -> int:
        """Groups of ranks that share rows: a batch is divided among so many."""
        return self.ranks // self.sequence_parallel


@dataclass(frozen=True)
class Objective:
    """What a rank learns by, as plain data: it makes the algorithm itself, once extensions are loaded there."""

    algorithm: str = DEFAULT
    """A key of `coa.learning.algorithms.ALGORITHMS`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 1.0
    """That samples were drawn at: log-probs are those of softmax(logits / temperature)."""
