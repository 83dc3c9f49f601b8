"""What a rank is told to need is what it needs: peaks of plain processes over gloo."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.learner.config import LearnerConfig
from actors.learner.sizes import counted_on_meta
from coa.learning.packing import PackingConfig
from coa.planning.memory import rank_memory
from tests.support.weights import run_ranks

MIB = 2**20
TOKENS = 512
SHAPES: dict[str, dict[str, int]] = {
    "wide": {"vocab_size": 32000, "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8},
    "deep": {"vocab_size": 4000, "hidden_size": 768, "num_hidden_layers": 16, "num_attention_heads": 12},
}
"""58 and 116 million parameters."""

TRAIN = """
import numpy as np
from dataclasses import replace
from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.learner import Learner
from actors.weights.ranks import Ranks
from actors.weights.transports import find_sender
from coa.learning.packing import PackingConfig
from coa.learning.samples import all_trained
from tests.support.weights import FolderWeightStore

settings = json.loads((folder / "settings.json").read_text())
packing = PackingConfig(row_tokens=settings["row_tokens"], rows=1)
config = LearnerConfig(ranks=world, packing=packing, threads=1, **settings["learner"])
objective = Objective(algorithm="imitation")
learner = Learner(pathlib.Path(settings["model"]), ModelConfig(), config, steps=3, objective=objective)
sender = find_sender("host")(Ranks("node"), FolderWeightStore(str(folder)))
ids = np.random.default_rng(rank).integers(0, settings["vocabulary"], settings["tokens"]).astype(np.int32)
loss_mask = np.arange(len(ids)) > 0
sample = replace(all_trained(ids), loss_mask=loss_mask, imitate=loss_mask.astype(np.float32))
learner.step([sample], 0)
learner.step([sample], 1)
sender.send(learner.parts(), 2, "2-0")
snapshot = learner.snapshot()
learner.step([sample], 2)  # while the checkpoint is written
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))
(folder / f"{rank}.json").write_text(json.dumps({"peak": peak}))
"""


Made = Callable[[str], tuple[Any, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The config of a shape, and a model of it; each is made once."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    @functools.cache
    def make(shape: str) -> tuple[Any, Path]:
        sizes: Any = SHAPES[shape]
        hidden = sizes["hidden_size"]
        config = Qwen3Config(
            **sizes, intermediate_size=3 * hidden, num_key_value_heads=4, head_dim=64, tie_word_embeddings=False
        )
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp(shape)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        return config, folder

    return make


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "learner", "row_tokens"),
    [
        ("wide", {"zero_stage": 1}, TOKENS),
        ("deep", {"zero_stage": 2}, TOKENS),
        ("deep", {"zero_stage": 3}, TOKENS),
        ("deep", {"zero_stage": 3, "reduce_bucket_size": 4_000_000, "max_live_parameters": 20_000_000}, TOKENS),
        ("deep", {"zero_stage": 3}, TOKENS // 8),
    ],
)
def test_a_rank_takes_the_memory_that_it_is_told_to_take(
    shape: str, learner: dict[str, Any], row_tokens: int, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimate over measured peak, two ranks, float32, the rank that has most:

    wide, stage 1: 1.15    deep, stage 2: 1.10    deep, stage 3: 0.96
    deep, stage 3, small buckets: 0.90            deep, stage 3, a sample as long as eight rows: 0.98

    With a threshold of its own, the C library returns large blocks when they are freed. By default it keeps blocks of
    up to 32 MiB, how many differs from run to run, and the same shares are 0.79 to 1.14.

    Wide at stage 1 is above since the optimizer's copy of the gradients and the activations are not there together.
    Deep in bfloat16 at stage 3, with rows of 256 tokens, was 1.02 once. On a GPU nothing of this was measured."""
    model, folder = made(shape)
    settings = {
        "tokens": TOKENS,
        "row_tokens": row_tokens,
        "vocabulary": model.vocab_size,
        "model": str(folder),
        "learner": learner,
    }
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", str(4 * MIB))
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    measured = max(rank["peak"] for rank in run_ranks(TRAIN, 2, tmp_path))
    config = LearnerConfig(ranks=2, packing=PackingConfig(row_tokens=row_tokens, rows=1), **learner)
    told = rank_memory(counted_on_meta(model), config, "float32", longest=TOKENS, bucket_bytes=64 * MIB, gpu=False)
    share = (told.on_device + told.on_host) / measured
    print(f"{shape}, {learner}, rows of {row_tokens}: {measured / 2**30:.2f} GiB, {share:.2f} of it told")
    assert 0.85 < share < 1.15


def test_settings_are_read_without_torch() -> None:
    asked = "import sys, jobs.recipe.schema; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0
