"""Attention over packed rows: a token sees its own sample up to itself, and no other sample of the row.

    masked     [R, L] rows with a mask of R * L * L           short rows: one kernel for all samples of a micro-batch
    segmented  all rows as one line, sample by sample         long rows: no mask, no work across samples
    varlen     all rows as one line, with its lengths         flash_attention_2 and flex_attention split it themselves

`sdpa` uses the first or the second, by the length of a row. The mask costs compute for the masked pairs, and memory: 2
GiB in bfloat16 for 32768 tokens. Forward and backward pass of a 4-layer model on one CPU thread: in segments a row of 8
samples of 512 tokens was 5.0 times as fast, one sample of 4096 tokens 2.5 times, 8 samples of 128 tokens 2.5 times;
rows of 192 to 512 tokens were within 7 %, and for these a GPU would lose time to a kernel call per sample and layer.
"""

from typing import Any

import torch
from torch import Tensor

SEGMENTED = "coa_segmented"
"""Name under which transformers knows `segmented_attention`; without lengths it is plain sdpa."""
MASKED_TOKENS = 512
"""Maximum length of a row that is attended with a mask."""
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
    """Attention within each sample. Inputs [1, heads, N, D]: N tokens, of samples of `segment_lengths`; returns [1, N,
    heads, D]."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if segment_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    parts: list[Tensor] = []
    for q, k, v in zip(*(x.split(segment_lengths, dim=2) for x in (query, key, value)), strict=True):
        mask = _window(q.shape[2], sliding_window, q.device) if sliding_window else None
        parts.append(sdpa_attention_forward(module, q, k, v, mask, **kwargs)[0])
    return torch.cat(parts, dim=1), None


def _window(length: int, window: int, device: torch.device) -> Tensor | None:
    """Mask [1, 1, L, L], true for the last `window` tokens up to each token; None if the window covers all tokens."""
    if length <= window:
        return None
    ones = torch.ones(length, length, dtype=torch.bool, device=device)
    return (ones.tril() & ones.triu(1 - window))[None, None]


def block_diagonal(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """Turns segment numbers [R, L] into an additive causal mask [R, 1, L, L]: 0 within a segment, the dtype's minimum
    elsewhere.

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
    """Arguments of flash attention for a line; its kernels read the lengths from the device."""
    sizes = lengths(positions)
    bounds = torch.nn.functional.pad(sizes.cumsum(0), (1, 0)).int()
    longest = int(sizes.max())
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def register() -> None:
    """Registers `segmented_attention` with transformers, without a mask function, so that no mask is made for it."""
    from transformers import AttentionInterface

    AttentionInterface.register(SEGMENTED, segmented_attention)
