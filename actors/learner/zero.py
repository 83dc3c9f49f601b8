"""DeepSpeed's settings, and loading a model that ZeRO-3 shards among the ranks.

With a model in bfloat16 the forward and backward passes run in it, while the optimizer steps float32 copies of the
weights, sharded as its state is. Gradients of a micro-batch are computed in bfloat16, and summed over ranks and over
micro-batches in float32.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch.distributed as dist

from actors.learner.config import LearnerConfig
from coa.errors import UserError
from coa.planning.memory import SUB_GROUP_ELEMENTS

T = TypeVar("T")

FLOAT32_BUFFERS = ("inv_freq", "e_score_correction_bias")
"""Names of buffers that stay float32 in a bfloat16 model: RoPE's frequencies, and the biases of experts, which
transformers lists itself. Frequencies in bfloat16 would turn tokens that are 1000 apart by up to a radian too far."""


def deepspeed_config(config: LearnerConfig, dtype: str) -> dict[str, Any]:
    zero: dict[str, Any] = {
        "stage": config.zero_stage,
        "overlap_comm": False,
        "reduce_bucket_size": config.reduce_bucket_size,
        "sub_group_size": SUB_GROUP_ELEMENTS,
        "stage3_max_live_parameters": config.max_live_parameters,
        "stage3_max_reuse_distance": config.max_live_parameters,
    }
    if config.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.offload_parameters:
        zero["offload_param"] = {"device": "cpu"}
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        # The number of micro-batches differs from step to step: the caller says when a batch is whole.
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.optimizer.clip_norm,
        "zero_allow_untested_optimizer": True,
        # PyTorch's fused AdamW steps on the host as well; DeepSpeed's own would have to be compiled.
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero,
        "steps_per_print": 10**9,
    }
    if dtype == "bfloat16":
        settings["bf16"] = {"enabled": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32", "keep_in_fp32_modules": list(FLOAT32_BUFFERS)}
        settings["communication_data_type"] = "fp32"
    return settings


def join_process_group() -> None:
    """Has DeepSpeed talk over the process group that is up.

    Left to itself it first compiles an operator for shared memory that only its inference calls: a minute, a compiler,
    and, where a process is killed meanwhile, a lock for which every later one waits without end.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=dist.get_backend())


def gather(value: T, *, alike: int = 1) -> list[T]:
    """Every rank's value, in the order of ranks; a collective. alike: so many ranks next to one another have the same
    value, which is taken once."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found[::alike]


@contextmanager
def sharded_loading(settings: dict[str, Any], folder: Path) -> Iterator[None]:
    """Within, transformers shards each weight as it is read where the settings are stage 3's: no rank ever holds
    a whole model. A model with tied embeddings is loaded whole, since it is untied afterwards."""
    from transformers import AutoConfig

    stage3 = settings["zero_optimization"]["stage"] == 3
    if not stage3 or AutoConfig.from_pretrained(folder).get_text_config().tie_word_embeddings:
        yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    try:
        _alive = HfDeepSpeedConfig(settings)  # transformers looks for it as long as it lives
    except ImportError as error:
        raise UserError("learner.zero_stage=3 needs the package accelerate: pip install accelerate") from error
    yield
