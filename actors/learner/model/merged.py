"""Checks, on a tiny copy of a model, that what is written is what was trained: weights that are saved and published,
with adapters merged, give plain transformers the same log-probs."""

from functools import lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from actors.learner.config import LoraConfig
from actors.learner.lora import add_adapters
from actors.learner.model.load import attention_in
from actors.learner.model.names import written_sources
from actors.learner.model.parity import (
    BOUNDS,
    Comparable,
    Copied,
    distance,
    loaded,
    sample_sequences,
    tiny_copy,
    ways_of,
)
from actors.weights.parts import DTYPES, ModelParts
from coa.errors import UserError
from coa.learning.samples import all_trained
from coa.pretrained.fit import causal_class
from coa.pretrained.reading import quiet, reading

if TYPE_CHECKING:
    import transformers

CHANGE = 0.1
"""Standard deviation of the adapters' second matrices."""
BUCKET_BYTES = 1 << 20


@lru_cache(maxsize=64)
def check_written(copied: Copied, lora: LoraConfig, unused: frozenset[str], make: type[Comparable]) -> None:
    """Raises UserError if the weights are not those that were trained. make: a policy from a model."""
    model = tiny_copy(copied.config, copied.attention)
    # transformers turns back those names that it has turned while it loaded, and a copy comes under its own: without
    # that record it is written under the hub's names, as what came from a file of the hub is.
    vars(model).pop("_weight_conversions", None)
    kind = type(model).__name__
    if lora.rank:
        add_adapters(model, lora, unused)
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(1)
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    nn.init.normal_(parameter, std=CHANGE)
    policy = make(model, ways=ways_of(copied.attention)[1:]).eval()
    sequences = sample_sequences(model.config)
    with torch.no_grad():
        trained = policy.compared([all_trained(one) for one in sequences], policy)
        with reading(f"{kind}: its weights can't be written"), quiet():
            written = make(reloaded(model), ways=ways_of(copied.attention)[1:]).eval()
            found = written.compared([all_trained(one) for one in sequences], written)
    apart = distance(found, trained, torch.float32)
    if not apart <= BOUNDS[torch.float32]:
        what = "with its adapters merged" if lora.rank else "as it is saved"
        raise UserError(f"{kind} can't be trained here: {what} it is {apart:.2g} nats from what was trained")


def reloaded(model: "transformers.PreTrainedModel") -> "transformers.PreTrainedModel":
    """The model that transformers makes of the weights that are written."""
    parts = ModelParts(written_sources(model), sharded=False, bucket_bytes=BUCKET_BYTES)
    flat = torch.cat([torch.from_numpy(piece.copy()) for _, piece in parts.pieces()])
    types = {name: dtype for dtype, name in DTYPES.items()}

    def tensor(start: int, stop: int, dtype: str, shape: tuple[int, ...]) -> Tensor:
        return flat[start:stop].clone().view(types[dtype]).view(shape)

    weights = {one.name: tensor(one.start, one.stop, one.dtype, one.shape) for one in parts.layout.tensors}
    return loaded(causal_class(model.config), model.config, weights, attention_in(model.config))
