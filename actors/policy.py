"""The policy as the learner sees it: a causal language model that gives log-probs of chosen tokens in packed rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from coa.errors import UserError
from coa.grammar import ANSWER, TAGS
from coa.packing import MicroBatch
from coa.tokenizer import END, PAD


@dataclass(frozen=True)
class ModelConfig:
    """Where the policy comes from: a Hugging Face model, or a new one of the Qwen3 architecture."""

    path: str | None = None
    """Folder or hub name of a pretrained model; None makes a new model of the sizes below."""
    hidden_size: int = 128
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 256
    rope_theta: float = 10_000.0
    max_positions: int = 1024
    initializer_range: float = 0.02
    vocabulary_limit: int = 4096
    """Most tokens that the tokenizer trained for a new model may have."""
    dtype: str = "float32"
    attention: str = "sdpa"


def new_model(config: ModelConfig, tokenizer: Tokenizer, *, seed: int) -> Any:
    """A Qwen3 with random weights, for a tokenizer made by `coa.tokenizer`.

    Embeddings are untied: vLLM's CPU backend keeps a stale output projection when a tied one is updated.
    """
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    pad = tokenizer.token_to_id(PAD)
    ends = [tokenizer.token_to_id(END), tokenizer.token_to_id(TAGS[ANSWER].close)]
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_positions,
            initializer_range=config.initializer_range,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=ends[0],
            pad_token_id=pad,
            use_cache=False,
        )
    )
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=ends, pad_token_id=pad)
    return model


def load_model(path: Path | str, config: ModelConfig) -> Any:
    """A pretrained causal language model; UserError where there is none or where its embeddings are tied."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=getattr(torch, config.dtype), attn_implementation=config.attention
        )
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no model there ({str(error).splitlines()[0]})") from error
    if model.config.tie_word_embeddings:
        raise UserError(f"{path}: tied embeddings can't be updated in a running engine; untie them first")
    return model


class PackedPolicy(nn.Module):
    """Log-probs of the trained tokens of a micro-batch. Samples of one row don't see each other."""

    model: Any

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token_ids: Tensor, positions: Tensor, segments: Tensor, trained: Tensor) -> Tensor:
        """[R, L] each; returns [P] float32, the trained tokens in row-major order.

        The output projection runs on the positions that predict a trained token and on no other.
        """
        hidden = self.model.model(
            input_ids=token_ids,
            position_ids=positions,
            attention_mask=block_diagonal(segments, self.model.dtype),
            use_cache=False,
        ).last_hidden_state
        predicting = torch.zeros_like(trained)
        predicting[:, :-1] = trained[:, 1:]
        logits = self.model.lm_head(hidden[predicting]).float()
        chosen = token_ids[trained].unsqueeze(-1)
        return logits.gather(-1, chosen).squeeze(-1) - logits.logsumexp(-1)


def block_diagonal(segments: Tensor, dtype: torch.dtype) -> Tensor:
    """[R, L] segment numbers to an additive causal mask [R, 1, L, L]: 0 within a segment, lowest elsewhere.

    A padding token sees the padding before it, so that no row of the softmax is empty.
    """
    length = segments.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    visible = (segments[:, :, None] == segments[:, None, :]) & causal
    return torch.zeros((), dtype=dtype, device=segments.device).masked_fill(~visible, torch.finfo(dtype).min)[:, None]


def to_tensors(batch: MicroBatch, device: torch.device) -> dict[str, Tensor]:
    """The policy's inputs."""
    arrays = {
        "token_ids": batch.token_ids,
        "positions": batch.positions,
        "segments": batch.segments,
    }
    tensors = {name: torch.from_numpy(array).long().to(device) for name, array in arrays.items()}
    return {**tensors, "trained": torch.from_numpy(batch.trained).to(device)}
