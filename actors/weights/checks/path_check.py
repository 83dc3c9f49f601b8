"""Whether what is loaded is what an engine computes with: asked once, when an engine has started.

An engine's first weights come from its model's folder, by the way that vLLM loads every model. Later ones come by its
update, and there a backend may keep something that it has made of the old ones (on CPU, a tied output projection), with
no error. So, before the first request:

    1. the folder's weights by the update      log-probs must be those of the start
    2. for each kind of tensor in turn         loaded with other values: log-probs must change
    3. the folder's weights again              log-probs must be those of the start

A kind is what the layers of a model have in common, such as every layer's q, k and v projection. Of a step's tensors
only those that change are loaded, so all of it moves the model about three times.

Two kinds of models can't be checked so. They run with the weights of their start, and refuse others:

    tied          the output layer shares the tensor of the embeddings: one tensor is both
    several files there is no one layout to load from, as with most published models of 7B and more

Learners untie what they train, and write one file.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from actors.weights.loader import WeightLoader
from actors.weights.on_disk import published_file
from coa.errors import StaleWeights
from coa.types import Floats, Tokens

PROBE_TOKENS = 32
NOISE = 8.0
"""Log-probs are the same where they differ by at most so many times what two equal requests do, and changed above."""
LEAST_NOISE = {2: 1e-3, 4: 1e-6}
"""By the bytes of a weight. Two requests may be equal bit for bit, and a kernel that is set up anew by a reload still
rounds otherwise. Other values of a tensor move log-probs by far more."""
WEIGHTS = "model.safetensors"
"""The file of a model whose weights are in one."""


async def check_path(
    loader: WeightLoader, llm: Any, model_dir: Path, logprobs: Callable[[Tokens], Awaitable[Floats]]
) -> None:
    """Raises StaleWeights where the output of an engine that has nothing to do does not follow what is loaded.

    `logprobs`: of all tokens but the first, of a sequence that no cache is asked for.
    """
    if llm.model_config.hf_text_config.tie_word_embeddings:
        loader.refusal = "the engine's output layer is tied to its embeddings, and might be kept by an update: untie it"
        return
    if not (model_dir / WEIGHTS).exists():
        loader.refusal = f"{model_dir} has no {WEIGHTS}: only an engine that started from a single file takes new ones"
        return
    published = await asyncio.to_thread(published_file, 0, model_dir)
    tokens = probe_tokens(llm.model_config.get_vocab_size(), llm.model_config.max_model_len)
    first, again = await logprobs(tokens), await logprobs(tokens)
    noise = max(NOISE * difference(first, again), LEAST_NOISE[llm.model_config.dtype.itemsize])
    await loader.receive(published)
    took = await loader.update(published)
    loaded = await logprobs(tokens)
    if (far := difference(first, loaded)) > noise:
        raise StaleWeights(f"the same weights by an update change log-probs by {far:.1e}")
    restored: list[str] = []
    for kind, names in kinds(took).items():
        await loader.update(published, perturbed=names, only=[*names, *restored])
        if not difference(first, await logprobs(tokens)) > noise:
            raise StaleWeights(f"the engine's output does not follow its weights: {kind} changed, log-probs did not")
        restored = names
    await loader.update(published, only=restored)
    if (far := difference(first, await logprobs(tokens))) > noise:
        raise StaleWeights(f"weights that were changed and changed back change log-probs by {far:.1e}")


def kinds(took: dict[str, str]) -> dict[str, list[str]]:
    """Tensors by kind. `took`: the parameter that each went into. All tensors of a module are of one kind, since a
    module is loaded whole."""
    found: dict[str, list[str]] = {}
    for name, parameter in took.items():
        found.setdefault(re.sub(r"\.\d+\.", ".*.", parameter.rpartition(".")[0]), []).append(name)
    return found


def probe_tokens(vocabulary: int, longest: int) -> Tokens:
    """The same for every engine of a model."""
    length = min(PROBE_TOKENS, longest - 1)
    return np.random.default_rng(0).integers(0, vocabulary, length).astype(np.int32)


def difference(one: Floats, other: Floats) -> float:
    """The largest of all places; NaN, which is no equal, where one is."""
    return float(np.abs(one - other).max())
