"""Attention of packed samples by PyTorch's kernel for samples of several lengths, in whose place stands its definition:
the kernel itself runs on GPUs only."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.learner import attention
from actors.learner.attention import Line, branched_attention, register
from coa.learning.packing import Branch

SIZES = [3, 1, 7]
PREFIXES = {"samples": [[], [], []], "a tree": [[], [0, 1], [0, 1, 3]], "a tree and a sample": [[], [0], []]}
Bounds = tuple[int, int]


def by_definition(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds_q: Tensor,
    bounds_k: Tensor,
    longest_q: int,
    longest_k: int,
    *,
    scale: float | None,
    window_size: Bounds,
    enable_gqa: bool,
) -> Tensor:
    """Inputs [N, heads, D] and [K, heads, D]. The last token of a sample sees all of its keys, or `window_size` of them
    before and after itself; those before see one less each."""
    assert bounds_q.dtype == bounds_k.dtype == torch.int32
    assert (longest_q, longest_k) == (int(torch.diff(bounds_q).max()), int(torch.diff(bounds_k).max()))
    assert query.shape[1] == key.shape[1] or enable_gqa
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * (scale or query.shape[-1] ** -0.5)
    samples = torch.arange(len(bounds_q) - 1)
    of_query, of_key = (torch.repeat_interleave(samples, torch.diff(bounds)) for bounds in (bounds_q, bounds_k))
    from_end_q, from_end_k = (
        bounds[1:][of] - torch.arange(len(of)) for bounds, of in ((bounds_q, of_query), (bounds_k, of_key))
    )
    behind = from_end_k[None, :] - from_end_q[:, None]
    left, right = window_size
    visible = (of_query[:, None] == of_key[None, :]) & (behind >= -right)
    if left >= 0:
        visible &= behind <= left
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~visible, float("-inf")).softmax(-1), value)


class Module(torch.nn.Module):
    is_causal = True
    num_key_value_groups = 2


@pytest.mark.parametrize("prefixes", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("window", [None, 2, 100])
@pytest.mark.parametrize("heads", [2, 4])
def test_one_call_for_all_branches_is_the_same_as_a_call_for_each(
    window: int | None, heads: int, prefixes: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.nn.attention import varlen

    generator = torch.Generator().manual_seed(0)
    shape = (1, 2, sum(SIZES), 8)
    query = torch.randn((1, heads, *shape[2:]), generator=generator)
    key, value = (torch.randn(shape, generator=generator) for _ in range(2))
    module: Any = Module()
    module.num_key_value_groups = heads // 2
    branches = [Branch(np.array(before, np.int64), own) for before, own in zip(prefixes, SIZES, strict=True)]
    arguments = (module, query, key, value, None, Line(branches, query.device), window)
    by_sample, _ = branched_attention(*arguments, scaling=0.3)
    monkeypatch.setattr(attention, "has_varlen", lambda *_: True)
    monkeypatch.setattr(varlen, "varlen_attn", by_definition)
    at_once, _ = branched_attention(*arguments, scaling=0.3)
    assert at_once.shape == by_sample.shape == (1, sum(SIZES), heads, 8)
    torch.testing.assert_close(at_once, by_sample)


def test_a_cpu_has_no_such_kernel() -> None:
    query = torch.zeros(1, 1, 1, 8, dtype=torch.bfloat16)
    assert not attention.has_varlen(query, query)


def test_no_graph_is_built_for_each_length() -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    register()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
