"""DeepSpeed's settings, and loading a model that ZeRO-3 shards among the ranks.

For a bfloat16 model the forward and backward passes run in bfloat16, while the optimizer updates float32 copies of the
weights, sharded like its state. Gradients of a micro-batch are computed in bfloat16, and summed over ranks and
micro-batches in float32.
"""

import os
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
"""Names of buffers that stay float32 in a bfloat16 model: RoPE's frequencies, and the expert biases that transformers
also keeps in float32. With bfloat16 frequencies the rotation between tokens 1000 apart would be off by up to a
radian."""


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
        # The number of micro-batches differs from step to step, so the caller decides when to step.
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


def choose_accelerator() -> None:
    """Makes DeepSpeed, before it is first imported, compute where the ranks communicate: over gloo on the CPU. By
    itself it takes the first GPU that it sees, and Ray hides no GPU from ranks for which none is reserved."""
    if dist.get_backend() == "gloo":
        os.environ["DS_ACCELERATOR"] = "cpu"


def join_process_group() -> None:
    """Makes DeepSpeed use the existing process group.

    By default it would first compile a shared-memory operator that only its inference uses. That takes a minute and a
    compiler, and if a process is killed meanwhile, it leaves a lock on which every later process hangs.
    """
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend=dist.get_backend())


def gather(value: T, *, alike: int = 1) -> list[T]:
    """Every rank's value, in the order of ranks; collective. alike: number of adjacent ranks with the same value, which
    is taken once."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found[::alike]


@contextmanager
def sharded_loading(settings: dict[str, Any], folder: Path) -> Iterator[None]:
    """In the body, if the settings are those of stage 3, transformers shards each weight as it is read, so no rank ever
    holds a whole model. A model with tied embeddings is loaded whole, since it is untied afterwards."""
    from transformers import AutoConfig

    stage3 = settings["zero_optimization"]["stage"] == 3
    if not stage3 or AutoConfig.from_pretrained(folder).get_text_config().tie_word_embeddings:
        yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    try:
        _alive = HfDeepSpeedConfig(settings)  # transformers uses it for as long as this object is alive
    except ImportError as error:
        raise UserError("learner.zero_stage=3 needs the package accelerate: pip install accelerate") from error
    yield
