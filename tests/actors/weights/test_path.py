"""Whether an engine follows its weights, asked of a loader without vLLM: who can't be asked, and what noise is."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from actors.learner.config import ModelConfig
from actors.learner.model.load import load_model
from actors.weights.checks.path_check import check_path
from actors.weights.loader import WeightLoader
from actors.weights.on_disk import published_file
from coa.errors import StaleWeights
from tests.support.tiny import make_model

NAN = float("nan")


def engine(dtype: torch.dtype, *, tied: bool = False) -> Any:
    text = SimpleNamespace(tie_word_embeddings=tied, vocab_size=100, hidden_size=8)
    model = SimpleNamespace(
        hf_text_config=text,
        dtype=dtype,
        max_model_len=64,
        get_vocab_size=lambda: 100,
        word_embeddings_untied_by_checkpoint=False,
    )
    return SimpleNamespace(model_config=model)


async def never(_: Any) -> Any:
    raise AssertionError("asked for log-probs")


def test_an_engine_of_a_model_in_several_files_starts_and_takes_no_other_weights(tmp_path: Path) -> None:
    single = make_model(tmp_path / "single")
    several = tmp_path / "several"
    load_model(single, ModelConfig()).save_pretrained(several, max_shard_size="100KB")
    assert len(list(several.glob("*.safetensors"))) > 1
    loader = WeightLoader(engine(torch.float32), clear_cache=True)
    asyncio.run(check_path(loader, engine(torch.float32), several, never))
    with pytest.raises(StaleWeights, match="only an engine that started from a single file takes new ones"):
        asyncio.run(loader.load(1, published_file(1, single)))


class Reloaded:
    """A loader whose engine follows its weights, and rounds otherwise once something was loaded."""

    refusal: str | None = None

    def __init__(self, rounding: float) -> None:
        self._rounding, self._now = rounding, 0.0

    async def receive(self, published: Any) -> None: ...

    async def update(self, published: Any, *, perturbed: Any = (), **how: Any) -> dict[str, str]:
        self._now = 1.0 if perturbed else self._rounding
        return {"a.weight": "a.weight"}

    async def logprobs(self, tokens: Any) -> Any:
        return np.full(len(tokens) - 1, -3.0 + self._now, np.float32)


@pytest.mark.parametrize(
    ("dtype", "rounding", "refused"),
    [
        (torch.bfloat16, 5e-4, False),
        (torch.bfloat16, 5e-3, True),
        (torch.float32, 5e-7, False),
        (torch.float32, 5e-4, True),
    ],
)
def test_another_rounding_after_a_reload_is_no_other_model(
    dtype: torch.dtype, rounding: float, refused: bool, tmp_path: Path
) -> None:
    save_file({"a.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    loader: Any = Reloaded(rounding)
    if refused:
        with pytest.raises(StaleWeights, match="the same weights by an update change log-probs"):
            asyncio.run(check_path(loader, engine(dtype), tmp_path, loader.logprobs))
    else:
        asyncio.run(check_path(loader, engine(dtype), tmp_path, loader.logprobs))


@pytest.mark.parametrize(
    ("start", "loaded", "perturbed", "back", "said"),
    [
        (NAN, 0.0, 1.0, 0.0, "are no numbers"),
        (0.0, NAN, 1.0, 0.0, "the same weights by an update change log-probs by nan"),
        (0.0, 0.0, NAN, 0.0, ""),
        (0.0, 0.0, 1.0, NAN, "changed and changed back change log-probs by nan"),
        (0.0, 0.0, 0.0, 0.0, "does not follow its weights: a changed"),
    ],
)
def test_log_probs_that_are_no_numbers_are_not_those_of_the_start(
    start: float, loaded: float, perturbed: float, back: float, said: str, tmp_path: Path
) -> None:
    save_file({"a.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    following: Any = Following(start, loaded, perturbed, back)
    check = check_path(following, engine(torch.float32), tmp_path, following.logprobs)
    if said:
        with pytest.raises(StaleWeights, match=said):
            asyncio.run(check)
    else:
        asyncio.run(check)


class Following(Reloaded):
    """A loader whose engine adds to its log-probs what is given, one after the other with each update."""

    def __init__(self, *added: float) -> None:
        super().__init__(0.0)
        self._now, *self._next = added

    async def update(self, published: Any, *, perturbed: Any = (), **how: Any) -> dict[str, str]:
        self._now = self._next.pop(0)
        return {"a.weight": "a.weight"}


class Tied(Reloaded):
    """A loader of a small tied model: hidden states are embeddings, and its output layer follows, or is stale."""

    def __init__(self, weight: torch.Tensor, *, stale: bool) -> None:
        super().__init__(0.0)
        self._weight, self._output, self._stale, self._embeddings = weight, weight, stale, weight

    async def update(self, published: Any, *, perturbed: Any = (), **how: Any) -> dict[str, str]:
        self._embeddings = self._weight.clone()
        if perturbed:
            rows = torch.ones(len(self._weight), dtype=torch.bool)
            rows[list(how["kept"])] = False
            self._embeddings[rows] *= 2
        if not self._stale:
            self._output = self._embeddings
        return {"embed.weight": "embed.weight"}

    async def logprobs(self, tokens: Any) -> Any:
        ids = torch.from_numpy(tokens).long()
        found = (self._embeddings[ids[:-1]] @ self._output.T).log_softmax(-1)
        return found.gather(-1, ids[1:, None])[:, 0].numpy()


@pytest.mark.parametrize("stale", [False, True], ids=["follows", "stale"])
def test_a_stale_output_layer_is_not_hidden_behind_its_embeddings(stale: bool, tmp_path: Path) -> None:
    weight = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    save_file({"embed.weight": weight}, tmp_path / "model.safetensors")
    loader: Any = Tied(weight, stale=stale)
    check = check_path(loader, engine(torch.float32, tied=True), tmp_path, loader.logprobs)
    if stale:
        with pytest.raises(StaleWeights, match="does not follow its weights: embed changed"):
            asyncio.run(check)
    else:
        asyncio.run(check)
        assert loader.refusal is None


def test_a_tie_of_tensors_that_can_not_be_found_takes_no_other_weights(tmp_path: Path) -> None:
    save_file({"embed.weight": torch.ones(100, 4)}, tmp_path / "model.safetensors")
    loader: Any = Reloaded(0.0)
    asyncio.run(check_path(loader, engine(torch.float32, tied=True), tmp_path, never))
    assert "no tensor of the model has the shape of both" in loader.refusal
