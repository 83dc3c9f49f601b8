"""The learner's policy: a causal language model that computes log-probs of chosen tokens in packed rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from actors.learner.attention import (
    MASKED_TOKENS,
    SEGMENTED,
    VARLEN,
    block_diagonal,
    lengths,
    register,
    varlen_arguments,
)
from actors.learner.config import LOGITS_BYTES, ModelConfig
from actors.learner.logits import Chosen, reduce_in_place
from actors.learner.sequence.attention import share
from actors.learner.sequence.groups import SequenceGroup, padded
from coa.agent.grammar import TAGS, Kind
from coa.agent.tokenizer import END, PAD
from coa.errors import UserError
from coa.learning.packing import MicroBatch


def new_model(config: ModelConfig, tokenizer: Tokenizer, *, seed: int) -> Any:
    """A Qwen3 model with random weights, for a tokenizer made by `coa.agent.tokenizer`.

    Embeddings are untied: vLLM's CPU backend keeps a stale output projection when a tied one is updated.
    """
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    pad = tokenizer.token_to_id(PAD)
    # With these end tokens, generation with the saved model stops after one turn, as in an episode.
    closing = [tag.close for tag in TAGS.values() if tag.kind in (Kind.TOOL, Kind.TERMINAL)]
    found = [tokenizer.token_to_id(mark) for mark in (END, *closing)]
    ends = [number for number in found if number is not None]
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
    """Loads a pretrained causal language model, unties its output projection and removes dropout; raises UserError if
    there is no such model."""
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(path), dtype=getattr(torch, config.dtype), attn_implementation=config.attention
        )
    except ImportError as error:
        raise UserError(f"model.attention={config.attention}: {str(error).splitlines()[0]}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no model there ({str(error).splitlines()[0]})") from error
    untie(model)
    remove_dropout(model)
    return model


def untie(model: Any) -> None:
    """Gives the output projection its own parameter if it shares the embeddings'; logits stay the same.

    An engine can't safely take an update of tied embeddings: vLLM's CPU backend keeps the old projection.
    """
    embeddings, projection = model.get_input_embeddings(), model.get_output_embeddings()
    if projection is not None and projection.weight is embeddings.weight:
        projection.weight = nn.Parameter(embeddings.weight.detach().clone())
    model.config.tie_word_embeddings = False
    model.config.get_text_config().tie_word_embeddings = False
    # transformers recorded the tie when the model was made, and uses this record to save and load.
    model.all_tied_weights_keys = {}


def remove_dropout(model: nn.Module) -> None:
    """Disables dropout, so that a token's log-prob is the same in every pass and in the engine that sampled it."""
    modules: Any = model.modules()
    for module in modules:
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = 0.0


class Predicting(NamedTuple):
    """Hidden states from which this rank predicts trained tokens: all P tokens, or those of its slice if ranks share
    rows."""

    hidden: Tensor
    """[p, H]."""
    chosen: Tensor
    """[p], the trained tokens."""
    counts: Sequence[int]
    """p of each rank that shares the rows; empty if rows are not shared."""


class PackedPolicy(nn.Module):
    """Log-probs of the trained tokens of a micro-batch. Samples of one row don't see each other.

    Works with any causal language model of transformers that exposes its decoder and output projection; raises
    UserError for others. Ranks that share rows (`sequence`) are called with the same rows, and each returns the full
    result.
    """

    model: Any

    def __init__(
        self, model: nn.Module, *, logits_bytes: int = LOGITS_BYTES, sequence: SequenceGroup | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self._sequence = sequence
        config = self.model.config.get_text_config()
        decoder = self.model.get_decoder() if hasattr(model, "get_decoder") else None
        if decoder is None or decoder is model or self.model.get_output_embeddings() is None:
            raise UserError(
                f"{type(model).__name__} has no decoder with an output projection: no causal language model"
            )
        if scaled := [name for name in ("logit_scale", "logits_scaling") if getattr(config, name, 1.0) != 1.0]:
            raise UserError(f"{type(model).__name__}: {scaled[0]} is not supported")
        self._window: int | None = getattr(config, "sliding_window", None)
        reduce_in_place(
            self.model.get_output_embeddings(),
            vocabulary=config.vocab_size,
            softcap=getattr(config, "final_logit_softcapping", None),
            limit=logits_bytes,
        )
        self._attention: str = config._attn_implementation
        if sequence is not None:
            share(self.model, self._attention, sequence.size)
        elif self._attention == "sdpa":
            register()
            self.model.set_attn_implementation(SEGMENTED)
            self._attention = SEGMENTED

    def forward(self, token_ids: Tensor, positions: Tensor, segments: Tensor, loss_mask: Tensor) -> Tensor:
        """Inputs [R, L]; returns the log-probs of the trained tokens in row-major order, [P] float32."""
        found = self._predicting(token_ids, positions, segments, loss_mask)
        return self._whole(found.counts, self._head(found).logprobs)[0]

    def _head(self, found: Predicting, **how: Any) -> Chosen:
        """Runs the output projection only on the positions that predict a trained token."""
        return self.model.get_output_embeddings()(found.hidden, found.chosen, **how)

    def _whole(self, counts: Sequence[int], *own: Tensor) -> tuple[Tensor, ...]:
        """Gathers tensors [p] of this rank to [P], over all ranks that share the rows."""
        if self._sequence is None:
            return own
        return self._sequence.gathered(torch.stack(own), counts).unbind()

    def _predicting(self, token_ids: Tensor, positions: Tensor, segments: Tensor, loss_mask: Tensor) -> Predicting:
        predicting = nn.functional.pad(loss_mask[:, 1:], (0, 1))
        # The next token of each token, taken before slicing: the next token of a slice's last token is in another
        # slice.
        following = token_ids.roll(-1, dims=1)
        how: dict[str, Any] = {}
        counts: Sequence[int] = ()
        if self._masked(token_ids.shape[1]):
            how["attention_mask"] = block_diagonal(segments, self.model.dtype)
        else:
            real = segments > 0
            line = [x[real].unsqueeze(0) for x in (token_ids, positions, predicting, following)]
            if self._sequence is not None:
                line = padded(line, self._sequence.size)
            how = self._arguments(line[1][0])
            if self._sequence is not None:
                counts = line[2].view(self._sequence.size, -1).sum(dim=1).tolist()
                line = [self._sequence.slice_of(x) for x in line]
            token_ids, positions, predicting, following = line
        decoder = self.model.get_decoder()
        hidden = decoder(input_ids=token_ids, position_ids=positions, use_cache=False, **how).last_hidden_state
        return Predicting(hidden[predicting], following[predicting], counts)

    def _arguments(self, positions: Tensor) -> dict[str, Any]:
        """Attention arguments for a line."""
        how: dict[str, Any] = {}
        if self._attention in (SEGMENTED, "sdpa"):
            how["segment_lengths"] = lengths(positions).tolist()
        elif self._attention != "flex_attention":  # flex_attention derives the lengths from the positions
            how = varlen_arguments(positions)
        return how if self._sequence is None else {**how, "sequence": self._sequence, "attention": self._attention}

    def _masked(self, length: int) -> bool:
        """Whether rows of that length are attended with a mask, which does not support a sliding window."""
        if self._sequence is not None:
            return False
        if self._attention == SEGMENTED:
            return length <= min(MASKED_TOKENS, self._window or MASKED_TOKENS)
        return self._attention not in VARLEN


class Outputs(NamedTuple):
    """Results for P trained tokens; float32, [P] each."""

    logprobs: Tensor
    entropy: Tensor
    """Entropy in nats; no gradient, and zero unless requested."""
    values: Tensor
    """Values; zero without a value head."""


class ValueHead(nn.Linear):
    """Computes values in float32 for weights of any dtype, since sums over many steps would add up bfloat16's errors.

    The cast is inside the module's call, because ZeRO-3 gathers the weights only there."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(input.float(), self.weight.float(), self.bias.float())


class TrainedPolicy(PackedPolicy):
    """The trained policy: log-probs at the temperature at which samples were drawn and, if requested, values from a
    head on the hidden state that predicts the token. The head is initialized to zero, and its loss has no gradient in
    the hidden states."""

    def __init__(
        self,
        model: nn.Module,
        *,
        logits_bytes: int = LOGITS_BYTES,
        temperature: float = 1.0,
        values: bool = False,
        sequence: SequenceGroup | None = None,
    ) -> None:
        super().__init__(model, logits_bytes=logits_bytes, sequence=sequence)
        self._temperature = temperature
        self.passes = 0
        """Number of forward passes that were begun."""
        self.value_head: nn.Linear | None = None
        if values:
            size = self.model.config.get_text_config().hidden_size
            self.value_head = ValueHead(size, 1, dtype=self.model.dtype, device=self.model.device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        segments: Tensor,
        loss_mask: Tensor,
        temperature: float | None = None,
        entropy: bool = False,
    ) -> Outputs:
        """Inputs [R, L]. `temperature`: replaces the samples' temperature."""
        self.passes += 1
        found = self._predicting(token_ids, positions, segments, loss_mask)
        own = self._head(found, temperature=self._temperature if temperature is None else temperature, entropy=entropy)
        values = torch.zeros_like(own.entropy)
        if self.value_head is not None:
            values = self.value_head(found.hidden.detach()).squeeze(-1)
        logprobs, nats, values = self._whole(found.counts, own.logprobs, own.entropy, values)
        return Outputs(logprobs, nats.detach(), values)


def to_tensors(batch: MicroBatch, device: torch.device) -> dict[str, Tensor]:
    """The policy's inputs for a micro-batch."""
    arrays = {
        "token_ids": batch.token_ids,
        "positions": batch.positions,
        "segments": batch.segments,
    }
    tensors = {name: torch.from_numpy(array).long().to(device) for name, array in arrays.items()}
    return {**tensors, "loss_mask": torch.from_numpy(batch.loss_mask).to(device)}
