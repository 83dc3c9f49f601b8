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
from actors.learner.policy import load_model
from actors.weights.checks.path_check import check_path
from actors.weights.loader import WeightLoader
from actors.weights.on_disk import published_file
from coa.errors import StaleWeights
from tests.support.tiny import make_model

NAN = float("nan")


def engine(dtype: torch.dtype) -> Any:
    text = SimpleNamespace(tie_word_embeddings=False)
    model = SimpleNamespace(hf_text_config=text, dtype=dtype, max_model_len=64, get_vocab_size=lambda: 100)
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

    async def update(self, published: Any, *, perturbed: Any = (), only: Any = None) -> dict[str, str]:
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

    async def update(self, published: Any, *, perturbed: Any = (), only: Any = None) -> dict[str, str]:
        self._now = self._next.pop(0)
        return {"a.weight": "a.weight"}
