"""Attention over packed rows: a token sees its own sample, up to itself, and nothing of its neighbours in the row.

    masked     [R, L] rows with a mask of R * L * L           short rows: one kernel for all samples of a micro-batch
    segmented  all rows as one line, sample by sample         long rows: no mask at all, work only where it counts
    varlen     all rows as one line, with its lengths         flash_attention_2 and flex_attention do the same inside

`sdpa` takes the first or the second by the length of a row. The mask costs the pairs of tokens that it rules out, and
memory: for 32768 tokens it would be 2 GiB in bfloat16. Forward and backward pass of a model of 4 layers on one CPU
thread: a row of 8 samples of 512 tokens was 5.0 times as fast in segments, one sample of 4096 tokens 2.5 times, 8
samples of 128 2.5 times; rows of 192 to 512 tokens were within 7 %, and there a GPU would feel a kernel call for every
sample of every layer.
"""

from typing import Any

import torch
from torch import Tensor

SEGMENTED = "coa_segmented"
"""Name under which transformers knows `segmented_attention`; without lengths it is plain sdpa."""
MASKED_TOKENS = 512
"""Longest row that is attended with a mask."""
VARLEN = ("flash_attention_2", "flash_attention_3", "flex_attention")


def segmented_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    segment_lengths: list[int] | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """[1, heads, N, D] each, N tokens of samples of `segment_lengths`; returns [1, N, heads, D]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if segment_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    parts: list[Tensor] = []
    for q, k, v in zip(*(x.split(segment_lengths, dim=2) for x in (query, key, value)), strict=True):
        mask = _window(q.shape[2], sliding_window, q.device) if sliding_window else None
        parts.append(sdpa_attention_forward(module, q, k, v, mask, **kwargs)[0])
    return torch.cat(parts, dim=1), None


def _window(length: int, window: int, device: torch.device) -> Tensor | None:
    """[1, 1, L, L], true for the last `window` tokens up to each; None where that is all of them."""
    if length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return (ones.tril() & ones.triu(1 - window))[None, None]


def block_diagonal(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """[R, L] segment numbers to an additive causal mask [R, 1, L, L]: 0 within a segment, lowest elsewhere.

    A padding token sees the padding before it, so that no row of the softmax is empty.
    """
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    visible = (segments[:, :, None] == segments[:, None, :]) & causal
    return torch.zeros((), dtype=dtype, device=segments.device).masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def lengths(positions: Tensor) -> Tensor:
    """Lengths of the samples in a line of positions, each of which starts at 0: [0, 1, 2, 0, 1] is 3 and 2."""
    starts = (positions == 0).nonzero().flatten()
    return torch.diff(starts, append=starts.new_tensor([len(positions)]))


def varlen_arguments(positions: Tensor) -> dict[str, Any]:
    """What flash attention wants to know of a line; its kernels take the lengths from a device."""
    sizes = lengths(positions)
    bounds = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()
    longest = int(sizes.max())
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def register() -> None:
    """Tells transformers of `segmented_attention`. It has no mask function there, so no mask is made for it."""
    from transformers import AttentionInterface

    AttentionInterface.register(SEGMENTED, segmented_attention)
