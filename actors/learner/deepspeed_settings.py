"""DeepSpeed's settings: those that a learner's own settings determine, and those that a recipe passes on.

For a bfloat16 model the forward and backward passes run in bfloat16, while the optimizer updates float32 copies of the
weights, sharded like its state. Gradients of a micro-batch are computed in bfloat16, and summed over ranks and
micro-batches in float32.
"""

from collections.abc import Iterator, Mapping

from actors.learner.config import LearnerConfig
from coa.errors import UserError
from coa.json_object import Json, JsonView
from coa.planning.memory import SUB_GROUP_ELEMENTS

FLOAT32_BUFFERS = ("inv_freq", "e_score_correction_bias")
"""Names of buffers that stay float32 in a bfloat16 model: RoPE's frequencies, and the expert biases that transformers
also keeps in float32. With bfloat16 frequencies the rotation between tokens 1000 apart would be off by up to a
radian."""
TAKEN = {"optimizer", "scheduler", "fp16", "train_batch_size", "gradient_accumulation_steps"}
"""Settings of DeepSpeed that the learner replaces by its own code."""
OVERLAP = "zero_optimization.overlap_comm"
FREE = {OVERLAP, "communication_data_type", "steps_per_print"}
"""Settings of DeepSpeed that `learner.deepspeed` may change although they are set here."""


def deepspeed_config(config: LearnerConfig, dtype: str, *, gpu: bool = False) -> Json:
    """DeepSpeed's settings, with those of `learner.deepspeed`. gpu: whether ranks have GPUs, where communication runs
    beside computing."""
    return merged(own_settings(config, dtype, gpu=gpu), config.deepspeed)


def check_deepspeed(config: LearnerConfig, dtype: str, where: str) -> None:
    """Raises UserError for a key of `learner.deepspeed` that the product sets. where: the learner's key in the
    recipe."""
    own = own_settings(config, dtype, gpu=True)
    for path in paths(config.deepspeed):
        if path == OVERLAP and config.zero_stage == 1 and config.deepspeed["zero_optimization"]["overlap_comm"]:
            raise UserError(f"{where}.deepspeed.{path} needs {where}.zero_stage of 2 or 3")
        if path in FREE:
            continue
        if path.split(".")[0] in TAKEN:
            raise UserError(f"{where}.deepspeed.{path} would not be used: the learner has an own part for it")
        parts, value = path.split("."), own
        for part in parts:
            if not isinstance(value, dict) or part not in value:
                break
            value = value[part]
        else:
            raise UserError(f"{where}.deepspeed.{path} is set by other settings of {where}")


def paths(settings: JsonView, above: str = "") -> Iterator[str]:
    """The keys of the values in nested settings: "zero_optimization.overlap_comm"."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from paths(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


def merged(own: JsonView, more: JsonView) -> Json:
    """Nested settings with the values of `more` in place of their own."""
    found = dict(own)
    for name, value in more.items():
        nested = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if nested else value
    return found


def own_settings(config: LearnerConfig, dtype: str, *, gpu: bool) -> Json:
    zero: Json = {
        "stage": config.zero_stage,
        # Without DeepSpeed's own accumulation of gradients, stage 1 can't: it adds them up after the last micro-batch.
        "overlap_comm": gpu and config.zero_stage > 1,
        "reduce_bucket_size": config.reduce_bucket_size,
        "sub_group_size": SUB_GROUP_ELEMENTS,
        "stage3_max_live_parameters": config.max_live_parameters,
        "stage3_max_reuse_distance": config.max_live_parameters,
        # Without it an update whose gradient is not finite would be applied.
        "compute_grad_norm": True,
    }
    if config.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.offload_parameters:
        zero["offload_param"] = {"device": "cpu"}
    settings: Json = {
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
        settings["bf16"] = {"enabled": True, "check_grad_overflow": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32", "keep_in_fp32_modules": list(FLOAT32_BUFFERS)}
        settings["communication_data_type"] = "fp32"
    return settings
