"""What a learner is told: its optimizer and loss, its rows, how a large model fits, and what it learns by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.learner.logits import LOGITS_BYTES
from actors.learner.lora import LoraConfig
from coa.learning.algorithms import DEFAULT
from coa.learning.losses import LossConfig
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig


@dataclass(frozen=True)
class LearnerConfig:
    ranks: int = 1
    """Data-parallel ranks of the learner group."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    updates_per_batch: int = 1
    """Optimizer updates of a batch, each on whole groups of its own; the version grows once a batch all the same."""
    zero_stage: int = 1
    """What ranks shard among them: 1 the optimizer's state, 2 gradients too, 3 parameters too."""
    offload_optimizer: bool = False
    """Keeps the optimizer's state in the host's memory, and steps there."""
    offload_parameters: bool = False
    """Keeps parameters in the host's memory until a layer needs them; stage 3 only."""
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
        if self.zero_stage not in (1, 2, 3):
            raise ValueError(f"learner.zero_stage is {self.zero_stage}, expected 1 to 3")
        if self.offload_parameters and self.zero_stage != 3:
            raise ValueError("learner.offload_parameters needs learner.zero_stage=3")


@dataclass(frozen=True)
class Objective:
    """What a rank learns by, as plain data: it makes the algorithm itself, once extensions are loaded there."""

    algorithm: str = DEFAULT
    """A key of `coa.learning.algorithms.ALGORITHMS`."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    temperature: float = 1.0
    """That samples were drawn at: log-probs are those of softmax(logits / temperature)."""
