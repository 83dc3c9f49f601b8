"""The learner's policy: a causal language model that computes log-probs of chosen tokens in packed rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from actors.learner.attention import (
    BRANCHED,
    MASKED_TOKENS,
    Line,
    register,
    tree_mask,
    varlen_arguments,
)
from actors.learner.config import ATTENTION_LAYERS, LOGITS_BYTES, VARLEN, ModelConfig
from actors.learner.logits import Chosen, at_least_float32, reduce_in_place
from actors.learner.sequence.attention import share
from actors.learner.sequence.groups import SequenceGroup, padded
from coa.agent.grammar import TAGS, Kind
from coa.agent.tokenizer import END, PAD
from coa.errors import UserError
from coa.learning.packing import MicroBatch, PackingConfig
from coa.pretrained.fit import NO_FIT, difference


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
    there is no such model, and if a tensor of it is missing, is left over or has another shape: transformers would
    train such a tensor from random numbers."""
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=getattr(torch, config.dtype),
            attn_implementation=config.attention,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except ImportError as error:
        raise UserError(f"model.attention={config.attention}: {str(error).splitlines()[0]}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no model there ({str(error).splitlines()[0]})") from error
    model, loading = loaded
    if found := difference(loading):
        raise UserError(f"{path}: {NO_FIT}: {found}")
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
    """Hidden states from which this rank predicts trained tokens: all of `Places`, or those of its slice if ranks share
    rows."""

    hidden: Tensor
    """[u, H]."""
    chosen: Tensor
    """[u], the trained tokens."""
    counts: Sequence[int]
    """u of each rank that shares the rows; empty if rows are not shared."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where tokens of a micro-batch are. Computed on the host, from which the batch comes: on a GPU each question to a
    tensor of the device would make the host wait for all that was begun before.

    A token that several samples share and train is predicted once: U tokens are predicted for P trained ones."""

    line: Line
    real: Tensor
    """[N], the tokens that are no padding, as indices of the flattened rows. In this order they are the line."""
    predictors: Tensor
    """[U], the places in the line that predict a token, ascending."""
    chosen: Tensor
    """[U], the tokens that they predict."""
    targets: Tensor
    """[P], for each trained token which of the U it is."""

    @classmethod
    def of(cls, batch: MicroBatch, device: torch.device) -> "Places":
        real = np.flatnonzero(batch.ends)
        places, first, targets = np.unique(batch.trained, return_index=True, return_inverse=True)
        predictors = batch.predictors[first]
        order = np.argsort(predictors, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        chosen = batch.token_ids.reshape(-1)[real[places[order]]].astype(np.int64)
        found = (torch.from_numpy(one).to(device) for one in (real, predictors[order], chosen, rank[targets]))
        return cls(Line(batch.branches, device), *found)


class PackedPolicy(nn.Module):
    """Log-probs of the trained tokens of a micro-batch. A sample sees no tokens but its own.

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
        layers: list[str] = getattr(config, "layer_types", None) or []
        self._one_by_one = bool(set(layers) - ATTENTION_LAYERS)
        reduce_in_place(
            self.model.get_output_embeddings(),
            vocabulary=config.vocab_size,
            softcap=getattr(config, "final_logit_softcapping", None),
            limit=logits_bytes,
        )
        register()
        self._attention: str = config._attn_implementation
        if sequence is not None:
            share(self.model, self._attention, sequence.size)
        elif self._attention == "sdpa":
            self.model.set_attn_implementation(BRANCHED)
            # A model with attention of its own stays as it is, and its rows are masked at any length.
            self._attention = config._attn_implementation

    def packing(self, asked: PackingConfig) -> PackingConfig:
        """How rows are packed for this model: tokens are shared only where attention is told of branches, and layers
        that carry a state from token to token, such as linear attention, get one sample at a time."""
        if self._one_by_one:  # a sample longer than a row gets a row of its own
            return PackingConfig(row_tokens=1, rows=1, share_prefixes=False)
        return replace(asked, share_prefixes=asked.share_prefixes and self._attention not in VARLEN)

    def forward(self, token_ids: Tensor, positions: Tensor, ends: Tensor, places: Places) -> Tensor:
        """Inputs [R, L]; returns the log-probs of the trained tokens, sample by sample, [P] float32."""
        found = self._predicting(token_ids, positions, ends, places)
        return self._whole(found.counts, self._head(found).logprobs)[0][places.targets]

    def _head(self, found: Predicting, **how: Any) -> Chosen:
        """Runs the output projection only on the positions that predict a trained token."""
        return self.model.get_output_embeddings()(found.hidden, found.chosen, **how)

    def _whole(self, counts: Sequence[int], *own: Tensor) -> tuple[Tensor, ...]:
        """Gathers tensors [u] of this rank to [U], over all ranks that share the rows."""
        if self._sequence is None:
            return own
        return self._sequence.gathered(torch.stack(own), counts).unbind()

    def _predicting(self, token_ids: Tensor, positions: Tensor, ends: Tensor, places: Places) -> Predicting:
        if self._masked(token_ids.shape[1]):
            hidden = self._hidden(token_ids, positions, attention_mask=tree_mask(ends, self.model.dtype))
            return Predicting(hidden.flatten(0, 1)[places.real[places.predictors]], places.chosen, ())
        token_ids, positions = (x.flatten()[places.real] for x in (token_ids, positions))
        if self._sequence is not None:
            return self._shared(self._sequence, token_ids, positions, places)
        hidden = self._hidden(token_ids[None], positions[None], **self._arguments(places.line))
        return Predicting(hidden[0, places.predictors], places.chosen, ())

    def _shared(self, group: SequenceGroup, token_ids: Tensor, positions: Tensor, places: Places) -> Predicting:
        """Of this rank's slice of a line [N], which the group shares."""
        more = -len(token_ids) % group.size
        line = places.line.with_padding(more) if more else places.line
        token_ids, positions = (group.slice_of(x) for x in padded([token_ids[None], positions[None]], group.size))
        hidden = self._hidden(
            token_ids,
            positions,
            **self._arguments(line),
            sequence=group,
            attention=self._attention,
        )
        size = token_ids.shape[1]
        owners = places.predictors // size
        mine = owners == group.position
        return Predicting(
            hidden[0, places.predictors[mine] - group.position * size],
            places.chosen[mine],
            owners.bincount(minlength=group.size).tolist(),
        )

    def _hidden(self, token_ids: Tensor, positions: Tensor, **how: Any) -> Tensor:
        decoder = self.model.get_decoder()
        return decoder(input_ids=token_ids, position_ids=positions, use_cache=False, **how).last_hidden_state

    def _arguments(self, line: Line) -> dict[str, Any]:
        """Attention arguments for a line."""
        if self._attention in (BRANCHED, "sdpa"):
            return {"line": line}
        assert not line.shares, f"{self._attention} takes whole samples"
        if self._attention == "flex_attention":  # it derives the lengths from the positions
            return {}
        return varlen_arguments(line)

    def _masked(self, length: int) -> bool:
        """Whether rows of that length are attended with a mask, which does not support a sliding window."""
        if self._sequence is not None:
            return False
        if self._attention == BRANCHED:
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
    """Computes values in float32 at least for weights of any dtype, since sums over many steps would add up bfloat16's
    errors.

    The cast is inside the module's call, because ZeRO-3 gathers the weights only there."""

    def forward(self, input: Tensor) -> Tensor:
        return nn.functional.linear(*map(at_least_float32, (input, self.weight, self.bias)))


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
        ends: Tensor,
        places: Places,
        temperature: float | None = None,
        entropy: bool = False,
    ) -> Outputs:
        """Inputs [R, L]. `temperature`: replaces the samples' temperature."""
        self.passes += 1
        found = self._predicting(token_ids, positions, ends, places)
        own = self._head(found, temperature=self._temperature if temperature is None else temperature, entropy=entropy)
        values = torch.zeros_like(own.entropy)
        if self.value_head is not None:
            values = self.value_head(found.hidden.detach()).squeeze(-1)
        whole = self._whole(found.counts, own.logprobs, own.entropy, values)
        logprobs, nats, values = (one[places.targets] for one in whole)
        return Outputs(logprobs, nats.detach(), values)


def to_tensors(batch: MicroBatch, device: torch.device) -> dict[str, Any]:
    """The policy's inputs for a micro-batch."""
    arrays = {"token_ids": batch.token_ids, "positions": batch.positions, "ends": batch.ends}
    tensors = {name: torch.from_numpy(array).long().to(device) for name, array in arrays.items()}
    return {**tensors, "places": Places.of(batch, device)}
