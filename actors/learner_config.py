"""What a learner can be told: its optimizer and loss, its rows, and how a large model fits."""

from dataclasses import dataclass, field

from actors.lora import LoraConfig
from coa.losses import LossConfig
from coa.packing import PackingConfig
from coa.schedule import OptimizerConfig


@dataclass(frozen=True)
class LearnerConfig:
    ranks: int = 1
    """Data-parallel ranks of the learner group."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    updates_per_batch: int = 1
    """Optimizer updates that a batch is split into; the version grows once a batch all the same."""
    zero_stage: int = 1
    """What ranks share out among them: 1 the optimizer's state, 2 gradients too, 3 parameters too."""
    offload_optimizer: bool = False
    """Keeps the optimizer's state in the host's memory, and steps there."""
    offload_parameters: bool = False
    """Keeps parameters in the host's memory until a layer needs them; stage 3 only."""
    gradient_checkpointing: bool = False
    """Keeps of each layer its input alone, and computes the rest again on the way back."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    threads: int = 1
    """CPU threads of a rank; 0 leaves the choice to PyTorch."""

    def __post_init__(self) -> None:
        if self.zero_stage not in (1, 2, 3):
            raise ValueError(f"learner.zero_stage is {self.zero_stage}, expected 1 to 3")
        if self.offload_parameters and self.zero_stage != 3:
            raise ValueError("learner.offload_parameters needs learner.zero_stage=3")
