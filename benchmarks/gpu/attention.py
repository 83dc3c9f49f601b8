"""(a) Attention of samples whose lengths were never seen before, forward and backward: by a call of each sample, with
cuDNN's graphs as PyTorch prefers them on Hopper, and without; and by one call for all."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from actors.learner import attention
from benchmarks.gpu.models import Size, timed
from coa.learning.packing import Branch

SAMPLES = 64
SIDES = {"cudnn": (True, False), "each": (False, False), "at_once": (False, True)}
"""Whether cuDNN's attention is on, and whether one call is made."""


def measure(size: Size) -> dict[str, float]:
    own, rng, figures = attention.has_varlen, np.random.default_rng(0), dict[str, float]()
    lengths = rng.permutation(np.arange(*size.attended))[: len(SIDES) * SAMPLES]
    attention.register()
    shared = [16, 32]  # what is allocated at first
    for name, ((graphs, at_once), unseen) in zip(
        SIDES, zip(SIDES.values(), np.array_split(lengths, len(SIDES)), strict=True), strict=True
    ):
        torch.backends.cuda.enable_cudnn_sdp(graphs)
        attention.has_varlen = own if at_once else lambda *_: False
        attended(size, shared)
        figures[f"seconds_{name}"] = timed(size.device, lambda unseen=unseen: attended(size, unseen.tolist()))
        figures[f"tokens_s_{name}"] = int(unseen.sum()) / figures[f"seconds_{name}"]
    attention.has_varlen = own
    attention.register()
    query = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16, device=size.device)
    return figures | {"one_call": float(own(query, query))}


def attended(size: Size, sizes: list[int]) -> None:
    heads, key_values, width = size.attention
    shapes = ((1, heads, sum(sizes), width), *((1, key_values, sum(sizes), width),) * 2)
    q, k, v = (torch.randn(s, device=size.device, dtype=torch.bfloat16, requires_grad=True) for s in shapes)
    module: Any = SimpleNamespace(is_causal=True, num_key_value_groups=heads // key_values, training=True)
    whole = [Branch(np.zeros(0, np.int64), tokens) for tokens in sizes]
    line = attention.Line(whole, size.device)
    attention.branched_attention(module, q, k, v, None, line, scaling=width**-0.5)[0].sum().backward()
