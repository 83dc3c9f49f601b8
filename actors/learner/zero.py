"""Setting up DeepSpeed in a rank, and loading a model that ZeRO-3 shards among the ranks."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import torch.distributed as dist

from coa.errors import UserError
from coa.json_object import Json
from coa.pretrained.fit import causal_class
from coa.pretrained.weights import stored_tensors

T = TypeVar("T")


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

    # Read as an attribute, it would try every operation of DeepSpeed: seconds, and a page of warnings without nvcc.
    setattr(deepspeed.ops, "__compatible_ops__", {"deepspeed_shm_comm": False})  # noqa: B010
    deepspeed.init_distributed(dist_backend=dist.get_backend())


def gather(value: T, *, alike: int = 1) -> list[T]:
    """Every rank's value, in the order of ranks; collective. alike: number of adjacent ranks with the same value, which
    is taken once."""
    found = [value] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found[::alike]


def may_be_untied(folder: Path) -> bool:
    """Whether the configuration ties the output projection to the embeddings, and the files hold one all the same."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder)
    if not config.get_text_config().tie_word_embeddings:
        return False
    tied = getattr(causal_class(config), "_tied_weights_keys", None) or ()
    return not stored_tensors(folder).keys().isdisjoint(tied)


@contextmanager
def sharded_loading(settings: Json, folder: Path) -> Iterator[None]:
    """In the body, if the settings are those of stage 3, transformers shards each weight as it is read, so no rank ever
    holds a whole model. A model that only seems to be tied is loaded whole: transformers compares both tensors to find
    that out, and sharded ones are alike to it."""
    stage3 = settings["zero_optimization"]["stage"] == 3
    if not stage3 or may_be_untied(folder):
        yield
        return
    from transformers.integrations.deepspeed import HfDeepSpeedConfig

    try:
        _alive = HfDeepSpeedConfig(settings)  # transformers uses it for as long as this object is alive
    except ImportError as error:
        raise UserError("learner.zero_stage=3 needs the package accelerate: pip install accelerate") from error
    yield
