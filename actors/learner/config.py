"""Settings of a learner: model, optimizer, loss, packing, memory savings and objective.

Nothing here imports torch: every command reads these settings.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from coa.bounds import AtLeast1, Share
from coa.json_object import Json, JsonView
from coa.learning.algorithms import DEFAULT
from coa.learning.losses import LossConfig
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig

VARLEN = ("flash_attention_2", "flash_attention_3", "flex_attention")
"""Values of `model.attention` that take whole samples: what samples share is computed for each."""
ALL_LINEAR = "all-linear"
"""As the target of adapters: every linear layer of the decoder."""
LOGITS_BYTES = 1 << 29
"""Maximum bytes of a chunk's float32 logits. If all logits fit, they are computed once and kept."""


@dataclass(frozen=True)
class ModelConfig:
    """The initial policy: a pretrained Hugging Face model, or a new model of the Qwen3 architecture."""

    path: str | None = None
    """Folder or hub name of a pretrained model; None makes a new model of the sizes below."""
    hidden_size: AtLeast1 = 128
    """Width of a new model's residual stream."""
    layers: AtLeast1 = 4
    """Number of transformer layers of a new model."""
    heads: AtLeast1 = 4
    """Number of attention heads per layer of a new model."""
    key_value_heads: AtLeast1 = 2
    """Number of key-value heads per layer of a new model (grouped-query attention)."""
    head_dim: AtLeast1 = 32
    """Width of one attention head of a new model."""
    intermediate_size: AtLeast1 = 256
    """Width of the feed-forward layers of a new model."""
    max_positions: AtLeast1 | None = None
    """Maximum sequence length of a new model, in tokens. None takes the longest that `agent.limits.max_tokens` and
    `sft.max_tokens` allow."""
    initializer_range: float = 0.02
    """Standard deviation of a new model's weights."""
    vocabulary_limit: AtLeast1 = 4096
    """Maximum vocabulary size of the tokenizer that is trained for a new model."""
    dtype: str = "float32"
    """Number type of the learners' weights and of published weights: float32 or bfloat16. With bfloat16 the optimizer
    keeps float32 copies. On a GPU take bfloat16: for float32, PyTorch has no fast attention with grouped heads, and the
    memory of a sample grows with the square of its length."""
    attention: str = "sdpa"
    """Attention kernel of the learners: sdpa runs everywhere, flash_attention_2 and flex_attention on GPUs
    (`actors.learner.attention`)."""

    PATHS: ClassVar = ("path",)

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(f"dtype is {self.dtype}, expected float32 or bfloat16")


@dataclass(frozen=True)
class LoraConfig:
    """Adapters (LoRA): only they are trained, and they are merged into the weights that engines get."""

    rank: int = 0
    """Rank of the adapters; 0 trains the whole model."""
    alpha: float = 32.0
    """Scale of the adapters: their product is multiplied by alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the linear layers that get adapters, each of them a layer of the model; `[all-linear]` takes all of the
    decoder's. Experts whose matrices are one tensor get an adapter an expert."""


@dataclass(frozen=True)
class ValueHeadConfig:
    """The head that predicts values, for algorithms that need them (`ppo`). It is initialized to zero and needs a much
    higher learning rate than a pretrained policy."""

    lr: float = 1e-4
    """Peak learning rate of the value head. The head has no weight decay; its other settings are those of
    `optimizer`."""
    warmup_ratio: Share = 0.0
    """Share of the steps, rounded up, in which the value head's learning rate grows from 0."""

    def of(self, policy: OptimizerConfig) -> OptimizerConfig:
        return replace(policy, lr=self.lr, warmup_steps=0, warmup_ratio=self.warmup_ratio)


@dataclass(frozen=True)
class LearnerConfig:
    """The learners: distribution of a batch, optimizer and memory savings."""

    ranks: AtLeast1 = 1
    """Number of processes that share the work of each batch, usually one per GPU."""
    sequence_parallel: AtLeast1 = 1
    """Number of ranks that share each row of tokens, for rows too long for one GPU (DeepSpeed-Ulysses, arXiv
    2309.14509); 1 disables sharing. Must divide `ranks` and the number of the model's attention heads."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """AdamW and its learning-rate schedule."""
    packing: PackingConfig = field(default_factory=PackingConfig)
    zero_stage: Annotated[int, Ge(1), Le(3)] = 1
    """ZeRO stage of DeepSpeed: 1 shards the optimizer's state over the ranks, 2 also gradients, 3 also parameters.
    Raise it if memory runs out."""
    offload_optimizer: bool = False
    """Whether the optimizer's state is kept and updated in the host's memory instead of the GPU's, which is slower."""
    offload_parameters: bool = False
    """Whether parameters are kept in the host's memory until a layer needs them; only with `zero_stage` 3."""
    reduce_bucket_size: AtLeast1 = 50_000_000
    """Number of gradient elements reduced over the ranks at a time: 50 million are 200 MB in float32. ZeRO-3 holds two
    such buckets, and gloo a third."""
    max_live_parameters: int = 1_000_000_000
    """Maximum number of parameters that ZeRO-3 keeps gathered at a time, including those that are reused soon."""
    gradient_checkpointing: bool = False
    """Whether the forward pass keeps only the layers' inputs and the backward pass recomputes the rest: less memory,
    more time."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Adapters (LoRA): only they are trained, and they are merged into the weights that engines get."""
    logits_bytes: AtLeast1 = LOGITS_BYTES
    """Maximum bytes of float32 logits in memory at a time. If a micro-batch has more, its logits are computed in chunks
    and recomputed in the backward pass."""
    deepspeed: Json = field(default_factory=Json)
    """Further settings of DeepSpeed, passed on as they are, such as `{zero_optimization: {zero_hpz_partition_size:
    8}}`. Those that other settings determine are refused."""
    entropy: bool = True
    """Whether the policy's entropy at trained tokens is measured."""
    threads: int = 1
    """Number of CPU threads of a rank; 0: PyTorch's default."""
    collective_s: Annotated[float, Ge(1)] = 1800.0
    """Maximum seconds for which a rank waits for the others in a collective operation. After it the rank fails, and the
    learners restart from their last checkpoint. The group in which DeepSpeed adds gradients has PyTorch's limit: 10
    minutes over NCCL, 30 over gloo."""

    def __post_init__(self) -> None:
        if self.sequence_parallel and self.ranks % self.sequence_parallel:
            raise ValueError(f"sequence_parallel is {self.sequence_parallel}, expected a divisor of ranks={self.ranks}")
        if self.offload_parameters and self.zero_stage != 3:
            raise ValueError("offload_parameters needs zero_stage=3")

    @property
    def replicas(self) -> int:
        """Number of groups of ranks that share rows; a batch is divided among these groups."""
        return self.ranks // self.sequence_parallel


@dataclass(frozen=True)
class RlLearnerConfig(LearnerConfig):
    """The learners: distribution of a batch, optimizer, loss and memory savings."""

    loss: LossConfig = field(default_factory=LossConfig)
    value_head: ValueHeadConfig = field(default_factory=ValueHeadConfig)
    updates_per_batch: AtLeast1 = 1
    """Optimizer updates per batch, each on a part of the batch's groups. The weight version increases once per
    batch."""

    @classmethod
    def of(cls, config: LearnerConfig) -> "RlLearnerConfig":
        """The settings, with defaults for those that fine-tuning has no use for."""
        if isinstance(config, cls):
            return config
        return cls(**{one.name: getattr(config, one.name) for one in fields(config)})


@dataclass(frozen=True)
class Objective:
    """The training objective as plain data; a rank builds the algorithm from it once its extensions are loaded."""

    algorithm: str = DEFAULT
    """A key of `coa.learning.algorithms.ALGORITHMS`."""
    settings: JsonView = field(default_factory=dict)
    temperature: float = 1.0
    """Temperature at which samples were drawn: log-probs are those of softmax(logits / temperature)."""
