"""Attention over packed rows of prefix trees: a token sees the tokens before it in its own samples, and no others.

    masked     [R, L] rows with a mask of R * L * L           short rows: one kernel for all samples of a micro-batch
    branched   all rows as one line, branch by branch         long rows: no work across samples
    varlen     all rows as one line, with its lengths         flash_attention_2 and flex_attention split it themselves,
                                                              into samples that share nothing

`sdpa` uses the first or the second, by the length of a row. A branch attends to the keys of its prefix and its own;
where a GPU has PyTorch's kernel for it, that is one call a layer for all branches. The mask costs compute for the
masked pairs, and memory: 2 GiB in bfloat16 for 32768 tokens. Forward and backward pass of a 4-layer model on one CPU
thread: branched, a row of 8 samples of 512 tokens was 5.0 times as fast, one sample of 4096 tokens 2.5 times, 8 samples
of 128 tokens 2.5 times; rows of 192 to 512 tokens were within 7 %.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coa.learning.packing import Branch

BRANCHED = "coa_branched"
"""Name under which transformers knows `branched_attention`; without branches it is plain sdpa."""
MASKED_TOKENS = 512
"""Maximum length of a row that is attended with a mask."""
WIDEST_HEAD, HEAD_STEP, AMPERE = 256, 8, (8, 0)
"""Limits of flash attention: dimensions of a head, at most and as multiples, and the compute capability of a GPU."""


class Line:
    """The branches of a line of tokens, on a device. Made once for a micro-batch; what the layers have in common is
    computed at the first of them."""

    def __init__(self, branches: Sequence[Branch], device: torch.device) -> None:
        self._branches, self._device = tuple(branches), device
        self.sizes = [branch.tokens for branch in branches]
        """Tokens of each branch, in the order of the line."""
        self.seen = [len(branch.prefix) + branch.tokens for branch in branches]
        """Number of tokens that the last token of each branch sees."""
        self._masks: dict[tuple[int, int, int | None, torch.dtype], Tensor] = {}

    @property
    def shares(self) -> bool:
        """Whether a branch has a prefix."""
        return self.sizes != self.seen

    def with_padding(self, tokens: int) -> "Line":
        """The same with so many tokens behind it, as a branch of their own."""
        return Line((*self._branches, Branch(np.zeros(0, np.int64), tokens)), self._device)

    @cached_property
    def keys(self) -> Tensor | None:
        """Places of the tokens that each branch sees, branch by branch, [K]; None if no branch has a prefix: these are
        the line itself."""
        if not self.shares:
            return None
        ends = accumulate(self.sizes)
        parts = [
            (branch.prefix, np.arange(end - branch.tokens, end))
            for branch, end in zip(self._branches, ends, strict=True)
        ]
        return torch.from_numpy(np.concatenate([one for pair in parts for one in pair])).to(self._device)

    @cached_property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """Where the branches, and what they see, begin and end, [B + 1] int32 each: lengths 3 and 2 are [0, 3, 5]."""
        own, seen = (
            torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=self._device)
            for lengths in (self.sizes, self.seen)
        )
        return own, seen

    def mask(self, tokens: int, seen: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Additive mask [1, 1, tokens, seen] for a branch's tokens, the last of `seen`, of which each sees the last
        `window` up to itself; None where plain causal attention is the same."""
        inside = window is None or seen <= window
        if tokens == seen and inside:
            return None
        key = (tokens, seen, None if inside else window, dtype)
        if key not in self._masks:
            visible = torch.ones(tokens, seen, dtype=torch.bool, device=self._device).tril(seen - tokens)
            if window is not None and not inside:
                visible &= torch.ones_like(visible).triu(seen - tokens - window + 1)
            self._masks[key] = _additive(visible, dtype)[None, None]
        return self._masks[key]


def branched_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    line: Line | None = None,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of each branch to its prefix and itself. Inputs [1, heads, N, D], a line of N tokens; returns [1, N,
    heads, D]."""
    attend = _attention(kwargs)
    if line is None:
        return attend(module, query, key, value, attention_mask, **kwargs)
    if line.keys is not None:
        key, value = key[:, :, line.keys], value[:, :, line.keys]
    if attend is not capped_attention and has_varlen(query, value):
        return _in_one_call(query, key, value, line, sliding_window, kwargs.get("scaling")), None
    parts: list[Tensor] = []
    for q, k, v in zip(
        query.split(line.sizes, dim=2), key.split(line.seen, dim=2), value.split(line.seen, dim=2), strict=True
    ):
        mask = line.mask(q.shape[2], k.shape[2], sliding_window, q.dtype)
        parts.append(attend(module, q, k, v, mask, **kwargs)[0])
    return torch.cat(parts, dim=1), None


def _attention(kwargs: Mapping[str, object]) -> Callable[..., tuple[Tensor, None]]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    special = any(kwargs.get(name) is not None for name in ("softcap", "s_aux"))
    return capped_attention if special else sdpa_attention_forward


def capped_attention(
    module: object,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention whose scores are capped, or shared with a sink of each head (`s_aux`, [heads]), which PyTorch's kernels
    can't do: all scores of a branch are in memory. Inputs [1, heads, N, D] and [1, key heads, K, D], the last N of K;
    returns [1, N, heads, D]."""
    repeats = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = query @ key.transpose(2, 3) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if attention_mask is None:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device)
        attention_mask = _additive(visible.tril(scores.shape[-1] - scores.shape[-2]), scores.dtype)
    scores = scores + attention_mask
    if s_aux is not None:
        sinks = s_aux.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], dim=-1)
    shares = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    return (shares[..., : key.shape[2]] @ value).transpose(1, 2).contiguous(), None


def has_varlen(query: Tensor, value: Tensor) -> bool:
    """Whether PyTorch's kernel for samples of several lengths can be used: flash attention, on GPUs from Ampere on, for
    values as wide as the queries."""
    return (
        query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[-1] <= WIDEST_HEAD
        and query.shape[-1] % HEAD_STEP == 0
        and value.shape[-1] == query.shape[-1]
        and torch.cuda.get_device_capability(query.device) >= AMPERE
    )


def _in_one_call(
    query: Tensor, key: Tensor, value: Tensor, line: Line, window: int | None, scale: float | None
) -> Tensor:
    """The kernel aligns a branch's tokens with the last of the keys that it sees."""
    from torch.nn.attention.varlen import varlen_attn

    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))  # [N, heads, D], [K, heads, D]
    found: Any = varlen_attn(
        q,
        k,
        v,
        *line.bounds,
        max(line.sizes),
        max(line.seen),
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),  # tokens to the left, and none to the right
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return found[None]


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `visible`, the dtype's minimum elsewhere."""
    return torch.zeros((), dtype=dtype, device=visible.device).masked_fill(~visible, torch.finfo(dtype).min)


def tree_mask(ends: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive mask [R, 1, L, L] of rows whose tokens are seen up to `ends` [R, L] (`MicroBatch`): 0 where the token of
    a column is one before, or is, the token of a row.

    A padding token sees itself, so that no row of the softmax is empty.
    """
    places = torch.arange(ends.shape[1], device=ends.device)
    visible = (places[:, None] >= places) & (places[:, None] < ends[:, None, :]) | (places[:, None] == places)
    return _additive(visible, dtype)[:, None]


def varlen_arguments(line: Line) -> dict[str, Tensor | int]:
    """Arguments of flash attention for a line of whole samples; its kernels read the lengths from the device."""
    (bounds, _), longest = line.bounds, max(line.sizes)
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}


def register() -> None:
    """Registers `branched_attention` with transformers, without a mask function, so that no mask is made for it.

    Also turns cuDNN's attention off, which PyTorch prefers on Hopper and Blackwell: it would build a graph for each
    sample, since nearly every sample has a length of its own, tens of milliseconds each, and keep them all.
    """
    from transformers import AttentionInterface

    torch.backends.cuda.enable_cudnn_sdp(False)
    AttentionInterface.register(BRANCHED, branched_attention)
