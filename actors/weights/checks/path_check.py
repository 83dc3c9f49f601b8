"""Checks once, after an engine's start, that the engine computes with the weights that are loaded.

An engine's first weights come from the model's folder, through vLLM's usual model loader. Later weights come through
vLLM's weight update, where a backend may silently keep something derived from the old weights (on CPU, the copy of a
weight that its kernel reads). Therefore, before the first request:

    1. the folder's weights by the update      log-probs must be those of the start
    2. for each kind of tensor in turn         loaded with other values in two layers: log-probs must change
    3. the folder's weights again              log-probs must be those of the start

A kind is a set of tensors that the layers have in common, such as every layer's q, k and v projection. Each step loads
only the tensors that change, so the check moves the model's size about three times.

Where the output layer and the embeddings share one tensor, an output layer that kept the old values would be hidden
behind the embeddings' change. So the rows of the probe's tokens keep their values: hidden states and the tokens' own
logits are those of the start, and log-probs change only with the logits of all other tokens, which the output layer
computes.

Some models can't be checked this way. They run with the weights of their start and refuse updates:

    several files    there is no single layout to load from, as with most published models of 7B and more
    a tie of two     the output layer is tied, and the file holds it beside the embeddings: the last one counts
    unlike shapes    the output layer is tied, and no tensor has the shape of both

Learners write a single file.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from actors.weights.loader import WeightLoader
from actors.weights.manifest import Layout
from actors.weights.on_disk import published_file
from coa.errors import StaleWeights
from coa.types import Floats, Tokens

if TYPE_CHECKING:
    import transformers
    from vllm.v1.engine.async_llm import AsyncLLM

PROBE_TOKENS = 32
NOISE = 8.0
"""Log-probs count as changed if they differ by more than this multiple of the difference between two equal requests."""
LEAST_NOISE = {2: 1e-3, 4: 1e-6}
"""Minimum tolerance of log-probs, by bytes per weight: two equal requests may agree bit for bit while a kernel set up
anew by a reload rounds differently. Perturbing a tensor changes log-probs by far more."""
WEIGHTS = "model.safetensors"
"""File name of a model whose weights are in a single file."""


async def check_path(
    loader: WeightLoader, llm: "AsyncLLM", model_dir: Path, logprobs: Callable[[Tokens], Awaitable[Floats]]
) -> None:
    """Raises StaleWeights if the output of an idle engine does not follow the loaded weights.

    `logprobs`: returns the log-probs of all tokens but the first, computed without a prefix cache.
    """
    if not (model_dir / WEIGHTS).exists():
        loader.refusal = f"{model_dir} has no {WEIGHTS}: only an engine that started from a single file takes new ones"
        return
    if llm.model_config.word_embeddings_untied_by_checkpoint:
        loader.refusal = f"{model_dir} holds an output layer that its configuration ties to the embeddings"
        return
    published = await asyncio.to_thread(published_file, 0, model_dir)
    text = llm.model_config.hf_text_config
    tied = tied_tensors(published.manifest.layout, text)
    if text.tie_word_embeddings and not tied:
        loader.refusal = "the output layer is tied to the embeddings, and no tensor of the model has the shape of both"
        return
    tokens = probe_tokens(llm.model_config.get_vocab_size(), llm.model_config.max_model_len)
    first, again = await logprobs(tokens), await logprobs(tokens)
    if not np.isfinite(first).all():
        raise StaleWeights(f"the log-probs of {model_dir} are no numbers, so no check can compare them")
    dtype: Any = llm.model_config.dtype  # vLLM's annotation allows a name, which no engine that runs has
    noise = max(NOISE * difference(first, again), LEAST_NOISE[dtype.itemsize])
    await loader.receive(published)
    took = await loader.update(published)
    loaded = await logprobs(tokens)
    if not (far := difference(first, loaded)) <= noise:
        raise StaleWeights(f"the same weights by an update change log-probs by {far:.1e}")
    restored: list[str] = []
    for kind, names in kinds(took).items():
        kept = tokens.tolist() if tied.intersection(names) else ()
        await loader.update(published, perturbed=names, kept=kept, only=[*names, *restored])
        if difference(first, await logprobs(tokens)) <= noise:
            raise StaleWeights(f"the engine's output does not follow its weights: {kind} changed, log-probs did not")
        restored = names
    await loader.update(published, only=restored)
    if not (far := difference(first, await logprobs(tokens))) <= noise:
        raise StaleWeights(f"weights that were changed and changed back change log-probs by {far:.1e}")


def kinds(took: dict[str, str]) -> dict[str, list[str]]:
    """Groups tensors by kind, those of the first and of the last layer that have it: all layers go the same way, and
    changing all of them would take minutes with a large model. `took`: the parameter that each tensor went into. All
    tensors of a module are of one kind, since vLLM loads a module as a whole."""
    found: dict[str, dict[int, list[str]]] = {}
    for name, parameter in took.items():
        layer = re.search(r"\.(\d+)\.", parameter)
        kind = found.setdefault(re.sub(r"\.\d+\.", ".*.", parameter.rpartition(".")[0]), {})
        kind.setdefault(int(layer[1]) if layer else 0, []).append(name)
    return {kind: [name for layer in sorted({min(of), max(of)}) for name in of[layer]] for kind, of in found.items()}


def tied_tensors(layout: Layout, config: "transformers.PretrainedConfig") -> set[str]:
    """The tensors with a row of hidden size for each token, if the output layer and the embeddings share one."""
    if not config.tie_word_embeddings:
        return set()
    return {span.name for span in layout.tensors if tuple(span.shape) == (config.vocab_size, config.hidden_size)}


def probe_tokens(vocabulary: int, longest: int) -> Tokens:
    """Token ids of the probe sequence, the same for every engine of a model."""
    length = min(PROBE_TOKENS, longest - 1)
    return np.random.default_rng(0).integers(0, vocabulary, length).astype(np.int32)


def difference(one: Floats, other: Floats) -> float:
    """Maximum absolute difference over all positions; NaN, which is not below any limit, if there is a NaN."""
    return float(np.abs(one - other).max())
