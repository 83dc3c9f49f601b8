"""The learner's policy: a causal language model that computes log-probs of chosen tokens in packed rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from actors.learner.attention import (
    BRANCHED,
    MASKED_TOKENS,
    Line,
    register,
    tree_mask,
    varlen_arguments,
)
from actors.learner.config import LOGITS_BYTES, VARLEN, LoraConfig
from actors.learner.logits import Chosen, at_least_float32, reduce_in_place
from actors.learner.model.head import decoder_of, head_of, scaling_of
from actors.learner.model.load import attention_in
from actors.learner.model.parity import Comparable, Copied, Parity, Way, settled_copy, ways_of
from actors.learner.sequence.attention import SHARED, share
from actors.learner.sequence.groups import SequenceGroup, padded
from coa.errors import UserError
from coa.learning.packing import ONE_SAMPLE, MicroBatch, PackingConfig, micro_batch
from coa.types import Sample

if TYPE_CHECKING:
    import transformers


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


class PackedPolicy(Comparable):
    """Log-probs of the trained tokens of a micro-batch. A sample sees no tokens but its own.

    Works with any causal language model of transformers that exposes its decoder and output projection; raises
    UserError for others. Whether a model computes the same in packed rows as by itself is found out by comparing both
    (`actors.learner.model.parity`). Ranks that share rows (`sequence`) are called with the same rows, and each returns
    the full result.
    """

    def __init__(
        self,
        model: "transformers.PreTrainedModel",
        *,
        logits_bytes: int = LOGITS_BYTES,
        sequence: SequenceGroup | None = None,
        ways: Sequence[Way] = (),
    ) -> None:
        """ways: the ways to compute, the fastest first; by default those by which a tiny copy of the model agrees with
        itself. Raises UserError if there is none."""
        super().__init__()
        self.model = model
        self.passes = 0
        """Number of forward passes that were begun."""
        self._sequence = sequence
        self._unscaled: dict[str, float] = {}
        """Arguments of `forward` for log-probs at the temperature 1."""
        config = self.model.config.get_text_config()
        self._window: int | None = getattr(config, "sliding_window", None)
        self.masked_tokens = MASKED_TOKENS
        """Maximum length of a row that is attended with a mask."""
        scaling = scaling_of(self.model)
        reduce_in_place(head_of(self.model), vocabulary=config.vocab_size, scaling=scaling, limit=logits_bytes)
        register()
        self.ways = tuple(ways) or self._ways(attention_in(config))
        self.take(self.ways[0])

    def _ways(self, attention: str) -> tuple[Way, ...]:
        if self._sequence is not None:
            return (Way(attention, packed=True),)
        packed = (copied := parity_of(self.model.config, attention)) is None or copied.way.packed
        return tuple(way for way in ways_of(attention) if packed or not way.packed)

    def take(self, way: Way) -> None:
        """Computes that way from now on."""
        self.way = way
        self._attention = way.attention
        if self._sequence is not None:
            share(self.model, way.attention, self._sequence.size)
            if (copied := parity_of(self.model.config, way.attention)) is not None and not copied.way.packed:
                raise UserError(f"{type(self.model).__name__}: learner.sequence_parallel needs packed rows ({copied})")
        elif way.attention != (config := self.model.config.get_text_config())._attn_implementation:
            self.model.set_attn_implementation(way.attention)
            # A model with attention of its own stays as it is, and its rows are masked at any length.
            self._attention = attention_in(config)

    def train(self, mode: bool = True) -> Self:
        """The model computes as in evaluation, without the noise that some layers add in training, so that a token's
        log-prob is the same in every pass. Only layers that recompute their activations must know that they train."""
        super().train(mode)
        self.model.eval()
        for module in self.model.modules():
            if mode and getattr(module, "gradient_checkpointing", False):
                module.training = True
        return self

    def packing(self, asked: PackingConfig) -> PackingConfig:
        """How rows are packed for this model: tokens are shared only where attention is told of branches, and a model
        that computes otherwise in packed rows gets one sample at a time."""
        if not self.way.packed:
            return ONE_SAMPLE
        return replace(asked, share_prefixes=asked.share_prefixes and self._attention not in VARLEN)

    def compared(self, samples: Sequence[Sample], run: nn.Module) -> list[Tensor]:
        """Log-probs of the trained tokens of samples that share nothing, computed together. run: calls this policy."""
        inputs = to_tensors(micro_batch([samples]), next(self.parameters()).device)
        outputs = run(**inputs, **self._unscaled)
        flat: Tensor = outputs if isinstance(outputs, Tensor) else outputs.logprobs
        return list(flat.split([int(one.loss_mask[1:].sum()) for one in samples]))

    def plain(self, token_ids: Tensor) -> Tensor:
        """Log-probs of the tokens of a sequence [L] but the first, [L - 1] float32, by the model's own forward pass:
        the sequence alone, eager attention, evaluation mode, no gradient checkpointing or packing of ours."""
        self.model.eval()
        self.model.set_attn_implementation("eager")
        try:
            logits = at_least_float32(self.model(input_ids=token_ids[None], use_cache=False).logits[0, :-1])
        finally:
            self.train(self.training)
            self.model.set_attn_implementation(SHARED if self._sequence is not None else self._attention)
        return logits.log_softmax(-1).gather(-1, token_ids[1:, None])[:, 0]

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor | None = None,
        ends: Tensor | None = None,
        places: Places | None = None,
        **how: object,
    ) -> "Tensor | Outputs":
        """Inputs [R, L]; returns `_outputs` for the trained tokens, sample by sample. With token ids [L] alone, it is
        `plain`: whatever shards the model gathers its weights for this call only."""
        self.passes += 1
        if positions is None or ends is None or places is None:
            return self.plain(token_ids)
        return self._outputs(self._predicting(token_ids, positions, ends, places), places.targets, **how)

    def _outputs(self, found: Predicting, targets: Tensor) -> "Tensor | Outputs":
        """Log-probs, [P] float32."""
        return self._whole(found.counts, self._head(found).logprobs)[0][targets]

    def _head(self, found: Predicting, **how: object) -> Chosen:
        """Runs the output projection only on the positions that predict a trained token."""
        return head_of(self.model)(found.hidden, found.chosen, **how)

    def _whole(self, counts: Sequence[int], *own: Tensor) -> tuple[Tensor, ...]:
        """Gathers tensors [u] of this rank to [U], over all ranks that share the rows."""
        if self._sequence is None:
            return own
        return self._sequence.gathered(torch.stack(own), counts).unbind()

    def _predicting(self, token_ids: Tensor, positions: Tensor, ends: Tensor, places: Places) -> Predicting:
        if not self.way.packed:
            assert not places.line.shares, "samples that are computed one at a time share nothing"
            samples = token_ids.flatten()[places.real].split(places.line.sizes)
            hidden = torch.cat([self._hidden(one[None])[0] for one in samples])
            return Predicting(hidden[places.predictors], places.chosen, ())
        if self._masked(token_ids.shape[1]):
            mask = tree_mask(ends, self.model.dtype)
            hidden = self._hidden(token_ids, position_ids=positions, attention_mask=mask)
            return Predicting(hidden.flatten(0, 1)[places.real[places.predictors]], places.chosen, ())
        token_ids, positions = (x.flatten()[places.real] for x in (token_ids, positions))
        if self._sequence is not None:
            return self._shared(self._sequence, token_ids, positions, places)
        hidden = self._hidden(token_ids[None], position_ids=positions[None], **self._arguments(places.line))
        return Predicting(hidden[0, places.predictors], places.chosen, ())

    def _shared(self, group: SequenceGroup, token_ids: Tensor, positions: Tensor, places: Places) -> Predicting:
        """Of this rank's slice of a line [N], which the group shares."""
        more = -len(token_ids) % group.size
        line = places.line.with_padding(more) if more else places.line
        token_ids, positions = (group.slice_of(x) for x in padded([token_ids[None], positions[None]], group.size))
        hidden = self._hidden(
            token_ids,
            position_ids=positions,
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

    def _hidden(self, token_ids: Tensor, **how: object) -> Tensor:
        return decoder_of(self.model)(input_ids=token_ids, use_cache=False, **how).last_hidden_state

    def _arguments(self, line: Line) -> Mapping[str, Line | Tensor | int]:
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
            return length <= min(self.masked_tokens, self._window or self.masked_tokens)
        return self._attention not in VARLEN


def parity_of(config: "transformers.PretrainedConfig", attention: str) -> Parity | None:
    """How a tiny copy of a model computes in packed rows, found from its configuration; None if no copy can be made.
    Raises UserError if it can't be trained."""
    return settled_copy(Copied.of(config, attention), PackedPolicy)


def check_trained(config: "transformers.PretrainedConfig", attention: str, lora: LoraConfig) -> Parity | None:
    """The same, and checks that what is written is what was trained (`actors.learner.model.merged`)."""
    from actors.learner.model.merged import check_written

    if (found := parity_of(config, attention)) is not None:
        check_written(Copied.of(config, attention), lora, found.unused, PackedPolicy)
    return found


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
        model: "transformers.PreTrainedModel",
        *,
        logits_bytes: int = LOGITS_BYTES,
        temperature: float = 1.0,
        values: bool = False,
        sequence: SequenceGroup | None = None,
        ways: Sequence[Way] = (),
    ) -> None:
        super().__init__(model, logits_bytes=logits_bytes, sequence=sequence, ways=ways)
        self._temperature = temperature
        self._unscaled = {"temperature": 1.0}
        self.value_head: nn.Linear | None = None
        if values:
            size = self.model.config.get_text_config().hidden_size
            self.value_head = ValueHead(size, 1, dtype=self.model.dtype, device=self.model.device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    def _outputs(
        self, found: Predicting, targets: Tensor, temperature: float | None = None, entropy: bool = False
    ) -> Outputs:
        """`temperature`: replaces the samples' temperature."""
        own = self._head(found, temperature=self._temperature if temperature is None else temperature, entropy=entropy)
        values = torch.zeros_like(own.entropy)
        if self.value_head is not None:
            values = self.value_head(found.hidden.detach()).squeeze(-1)
        whole = self._whole(found.counts, own.logprobs, own.entropy, values)
        logprobs, nats, values = (one[targets] for one in whole)
        return Outputs(logprobs, nats.detach(), values)


def to_tensors(batch: MicroBatch, device: torch.device) -> dict[str, Tensor | Places]:
    """The policy's inputs for a micro-batch."""
    arrays = {"token_ids": batch.token_ids, "positions": batch.positions, "ends": batch.ends}
    tensors = {name: torch.from_numpy(array).long().to(device) for name, array in arrays.items()}
    return {**tensors, "places": Places.of(batch, device)}
