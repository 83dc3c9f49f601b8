"""A policy of random weights on one device, in bfloat16 and in float32, by plain PyTorch: no Ray, vLLM or DeepSpeed."""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.learner.policy import TrainedPolicy, to_tensors
from coa.learning.packing import PackingConfig, micro_batch, pack
from coa.types import Sample


@dataclass(frozen=True)
class Setting:
    """A model, and samples for it, of the size that a device is for."""

    device: torch.device
    sizes: dict[str, int]
    lengths: tuple[int, int]
    """Of samples, from and to."""
    samples: int
    row_tokens: tuple[int, int]
    """Rows that are attended with a mask, and rows that are not (`actors.learner.attention.MASKED_TOKENS`)."""
    logits_bytes: int
    """So few that logits are computed in chunks."""
    bucket_bytes: int


TINY = Setting(
    torch.device("cpu"),
    {
        "vocab_size": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
    },
    lengths=(20, 90),
    samples=16,
    row_tokens=(256, 1024),
    logits_bytes=100_000,
    bucket_bytes=100_000,
)
LARGE = Setting(
    torch.device("cuda"),
    {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
    },
    lengths=(100, 500),
    samples=24,
    row_tokens=(512, 8192),
    logits_bytes=2**28,
    bucket_bytes=2**26,
)
"""0.75 billion parameters: Qwen3-0.6B with an output projection of its own."""


@dataclass
class Models:
    setting: Setting
    exact: Any
    """In float32, with weights that bfloat16 has."""
    rounded: Any
    """The same weights in bfloat16; rotary frequencies stay float32, as the learner keeps them."""
    samples: list[Sample] = field(default_factory=list)


def build(setting: Setting) -> Models:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    # Logits a few units apart: at the default range all tokens of an untrained model are about as likely.
    settings: dict[str, Any] = {**setting.sizes, "initializer_range": 0.05, "attn_implementation": "sdpa"}
    config = Qwen3Config(**settings, tie_word_embeddings=False, use_cache=False)
    with setting.device:
        exact = Qwen3ForCausalLM(config).float().eval()
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(parameter.bfloat16().float())
    rounded = copy.deepcopy(exact)
    for parameter in rounded.parameters():
        parameter.data = parameter.data.bfloat16()
    return Models(setting, exact, rounded, samples_of(setting))


def samples_of(setting: Setting) -> list[Sample]:
    rng = np.random.default_rng(0)
    found: list[Sample] = []
    for group in range(setting.samples):
        length = int(rng.integers(*setting.lengths))
        trained = rng.random(length) < 0.5
        trained[:2] = False, True
        zeros = np.zeros(length, np.float32)
        token_ids = rng.integers(0, setting.sizes["vocab_size"], length).astype(np.int32)
        if found and group % 4:  # each begins as the one before it, but for every fourth
            shared = min(length, len(found[-1])) // 2
            token_ids[:shared] = found[-1].token_ids[:shared]
        found.append(
            Sample(
                token_ids=token_ids,
                loss_mask=trained,
                imitate=zeros,
                reinforce=np.where(trained, rng.normal(), 0).astype(np.float32),
                rollout_logprobs=zeros,
                versions=np.zeros(length, np.int32),
                group=group,
            )
        )
    return found


def policy_of(models: Models, model: Any) -> TrainedPolicy:
    """On a copy of the model's modules and the model's own weights: the plain model stays as it is."""
    own = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    return TrainedPolicy(own, logits_bytes=models.setting.logits_bytes)


def packed(models: Models, policy: TrainedPolicy, row_tokens: int) -> dict[int, Tensor]:
    """Log-probs of each sample's trained tokens, from packed rows; samples by their groups."""
    found: dict[int, Tensor] = {}
    samples = models.samples
    for batch in pack(samples, PackingConfig(row_tokens=row_tokens)):
        outputs = policy(**to_tensors(batch, models.setting.device)).logprobs
        parts = outputs.split(np.bincount(batch.segments, minlength=len(batch.members)).tolist())
        found |= {samples[member].group: part for member, part in zip(batch.members, parts, strict=True)}
    return found


def singly(models: Models, policy: TrainedPolicy) -> dict[int, Tensor]:
    """As `packed`, each sample in a row of its own."""
    device = models.setting.device
    return {s.group: policy(**to_tensors(micro_batch([[s]]), device)).logprobs for s in models.samples}


def plainly(models: Models, model: Any) -> dict[int, Tensor]:
    """As `singly`, by transformers alone: all logits of a sample at once, and a softmax in float32."""
    found: dict[int, Tensor] = {}
    for sample in models.samples:
        ids = torch.from_numpy(sample.token_ids).long().to(models.setting.device)
        logits = model(input_ids=ids[None]).logits[0, :-1].float()
        trained = torch.from_numpy(sample.loss_mask[1:]).to(ids.device)
        found[sample.group] = logits.log_softmax(-1).gather(-1, ids[1:, None])[trained, 0]
    return found


def flat(logprobs: dict[int, Tensor]) -> Tensor:
    return torch.cat([one.detach() for _, one in sorted(logprobs.items())])


def objective(models: Models, logprobs: dict[int, Tensor]) -> Tensor:
    """A policy gradient's loss, of all samples: advantages times log-probs, over trained tokens."""
    parts = []
    for sample in models.samples:
        advantages = torch.from_numpy(sample.reinforce[sample.loss_mask]).to(logprobs[sample.group].device)
        parts.append((advantages * logprobs[sample.group]).sum())
    return -torch.stack(parts).sum() / sum(int(sample.loss_mask.sum()) for sample in models.samples)


def gradients(model: Any, loss: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    loss.backward()
    found = [p.grad.float() for p in model.parameters() if p.grad is not None]
    model.zero_grad(set_to_none=True)
    return found


def apart(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Relative L2 distance of all tensors together."""
    assert len(found) == len(expected)
    between = sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True))
    return (between / sum(float(b.square().sum()) for b in expected)) ** 0.5


# --- speed ------------------------------------------------------------------------------------------------------------


def timed(device: torch.device, work: Any) -> float:
    """Seconds until the device has done it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def matmul_flops(device: torch.device) -> float:
    """Operations a second of a large product of matrices in bfloat16 on this device."""
    size, repeats = (8192, 10) if device.type == "cuda" else (512, 2)
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    timed(device, lambda: a @ a)
    return repeats * 2 * size**3 / timed(device, lambda: [a @ a for _ in range(repeats)])


def flops_of(models: Models) -> float:
    """Operations of a forward and a backward pass over all samples, without what checkpointing computes again."""
    sizes, lengths = models.setting.sizes, [len(sample) for sample in models.samples]
    embeddings = models.rounded.get_input_embeddings().weight.numel()
    head = models.rounded.get_output_embeddings().weight.numel()
    weights = sum(p.numel() for p in models.rounded.parameters()) - embeddings - head
    trained = sum(int(sample.loss_mask.sum()) for sample in models.samples)
    attended = sum(length * (length + 1) / 2 for length in lengths)
    width = sizes["num_attention_heads"] * sizes["head_dim"]
    return 6 * (weights * sum(lengths) + head * trained) + 12 * sizes["num_hidden_layers"] * width * attended


def training(models: Models, policy: TrainedPolicy, steps: int) -> Iterator[float]:
    """The loss of each step, all of which are on the same samples."""
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    for _ in range(steps):
        loss = objective(models, packed(models, policy, models.setting.row_tokens[1]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        yield loss.item()
