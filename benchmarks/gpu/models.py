"""The random model that the parts measure, in the sizes of a pretrained one of 1.5 billion parameters, or tiny."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coa.types import Sample


@dataclass(frozen=True)
class Size:
    device: torch.device
    sizes: dict[str, int]
    samples: int
    lengths: tuple[int, int]
    """Of samples, from and to."""
    row_tokens: int
    attention: tuple[int, int, int]
    """Heads, key-value heads, and dimensions of a head, of the attention that is measured by itself."""
    attended: tuple[int, int]
    """Lengths of samples for that, from and to."""


TINY = Size(
    torch.device("cpu"),
    {
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
    },
    samples=8,
    lengths=(20, 60),
    row_tokens=1024,
    attention=(4, 2, 32),
    attended=(16, 200),
)
LARGE = Size(
    torch.device("cuda"),
    {
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "head_dim": 128,
    },
    samples=64,
    lengths=(200, 1000),
    row_tokens=8192,
    attention=(12, 2, 128),
    attended=(100, 4000),
)
"""Qwen2.5-1.5B with an output projection of its own: 1.8 billion parameters."""


def chosen(tiny: bool) -> Size:
    return TINY if tiny else LARGE


def make_folder(size: Size, folder: Path) -> Path:
    """A model of random bfloat16 weights, in Hugging Face layout."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    if (folder / "config.json").exists():
        return folder
    torch.manual_seed(0)
    settings: dict[str, Any] = {**size.sizes, "initializer_range": 0.05}
    config = Qwen3Config(**settings, tie_word_embeddings=False, bos_token_id=None, eos_token_id=0)
    with size.device:
        model = Qwen3ForCausalLM(config).bfloat16()
    model.cpu().save_pretrained(folder, max_shard_size="100TB")
    return folder


def samples_of(size: Size, count: int, seed: int) -> list[Sample]:
    """Trajectories of this many tokens, half of which are trained."""
    rng = np.random.default_rng(seed)
    found: list[Sample] = []
    for group in range(count):
        length = int(rng.integers(*size.lengths))
        trained = rng.random(length) < 0.5
        trained[:2] = False, True
        zeros = np.zeros(length, np.float32)
        found.append(
            Sample(
                token_ids=rng.integers(1, size.sizes["vocab_size"], length).astype(np.int32),
                loss_mask=trained,
                imitate=trained.astype(np.float32),
                reinforce=zeros,
                rollout_logprobs=zeros,
                versions=np.where(trained, 0, -1).astype(np.int32),
                group=group,
            )
        )
    return found


def timed(device: torch.device, work: Any) -> float:
    """Seconds until the device has done it."""
    import time

    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began
