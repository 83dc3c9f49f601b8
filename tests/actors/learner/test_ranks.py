"""Ranks of unequal work learn what one process does: plain processes over gloo, with a real vocabulary."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.learner.config import LoraConfig, Objective, RlLearnerConfig, ValueHeadConfig
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig
from coa.types import NO_GROUP
from tests.support.one_process import VOCABULARY, check, make_model, samples_of
from tests.support.ranks import Case, distance, on_ranks

LORA = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "up_proj"))
CONFIG = RlLearnerConfig(
    optimizer=OptimizerConfig(lr=1e-3, beta1=0.0, clip_norm=1e9),
    value_head=ValueHeadConfig(lr=1e-3),
    packing=PackingConfig(row_tokens=4096, rows=1),
    threads=1,
)


BIG = {"lora": LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "lm_head"))}
ALL: dict[str, Any] = {"lora": LORA, "gradient_checkpointing": True, "updates_per_batch": 4}
PPO = Objective(algorithm="ppo", settings={"gae_lambda": 0.9})
KL = Objective(settings={"kl_weight": 0.5}, temperature=0.7)
SMALL: dict[str, tuple[dict[str, Any], Objective]] = {
    "stage 1": ({"zero_stage": 1}, Objective()),
    "stage 2, 4 updates": ({"zero_stage": 2, "updates_per_batch": 4}, Objective()),
    "stage 3, adapters, checkpointing, 4 updates": ({"zero_stage": 3, **ALL}, Objective()),
    "stage 3, values": ({"zero_stage": 3, "updates_per_batch": 4}, PPO),
    "stage 3, reference, temperature": ({"zero_stage": 3, "updates_per_batch": 4}, KL),
}
GSPO = Objective(algorithm="gspo", settings={"clip_low": 0.2, "clip_high": 0.2})


def whole(stage: int) -> dict[str, tuple[dict[str, Any], Objective]]:
    """Everything that may be set beside a stage."""
    return {
        f"stage {stage}, {name}": ({"zero_stage": stage, **settings}, objective)
        for name, settings, objective in (
            ("plain", {}, Objective()),
            ("4 updates", {"updates_per_batch": 4}, Objective()),
            ("adapters", {"lora": LORA}, Objective()),
            ("adapters on the output", BIG, Objective()),
            ("checkpointing", {"gradient_checkpointing": True}, Objective()),
            ("all of it", ALL, Objective()),
            ("gspo", {"updates_per_batch": 4}, GSPO),
            ("values", ALL, PPO),
            ("reference, temperature", ALL, KL),
        )
    }


@pytest.mark.slow
def test_an_update_that_is_not_finite_on_one_rank_is_skipped_on_all(tmp_path: Path) -> None:
    """The second of two, of which the other rank has samples too: what the first has learnt stays."""
    model = make_model(tmp_path / "model", vocab_size=300)
    healthy, share = (samples_of(97, groups=(0, 1, 0, 1), seed=seed, vocabulary=300) for seed in range(2))
    wrong = replace(share[1], reinforce=share[1].reinforce * np.float32("nan"))
    cases = {
        f"stage {stage}, {dtype}": Case(
            model=model,
            config=replace(CONFIG, ranks=2, updates_per_batch=2, zero_stage=stage),
            objective=Objective(),
            shares=(healthy, (share[0], wrong, *share[2:])),
            model_settings={"dtype": dtype},
        )
        for stage in (1, 2, 3)
        for dtype in ("float32", "bfloat16")
    }
    for name, found in on_ranks(tmp_path, cases).items():
        [report] = found.reports
        assert (report.updates, report.skipped) == (1, 1), name
        assert report.not_finite == f"{wrong.loss_mask.sum()} advantages are not finite"
        first, second = found.gradients
        assert distance(second, first) == 0.0, "the moments are those of the first update"
        assert all(tensor.isfinite().all() for tensor in found.weights.values())


GROUPS = (0, 1, 2, 3, 0, NO_GROUP), (1, 3)
"""Of two ranks: some groups are on both."""


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "chunk", "matrix"),
    [
        pytest.param((201, 38), VOCABULARY, 50, SMALL, id="small"),
        *(
            pytest.param((1997, 385), 4000, 400, whole(stage), id=f"whole, stage {stage}", marks=pytest.mark.slow)
            for stage in (1, 2, 3)
        ),
    ],
)
def test_ranks_of_unequal_work_have_the_gradients_of_one_process(
    tokens: tuple[int, int],
    vocabulary: int,
    chunk: int,
    matrix: dict[str, tuple[dict[str, Any], Objective]],
    tmp_path: Path,
) -> None:
    """`chunk`: positions whose logits are there at a time, so that the ranks have different numbers of chunks."""
    pytest.importorskip("peft")
    model = make_model(tmp_path / "model", vocab_size=vocabulary)
    shares = tuple(
        samples_of(count, groups=groups, seed=seed, vocabulary=vocabulary)
        for seed, (count, groups) in enumerate(zip(tokens, GROUPS, strict=True))
    )
    config = replace(CONFIG, ranks=2, logits_bytes=4 * vocabulary * chunk)
    cases = {
        name: Case(model=model, config=replace(config, **settings), objective=objective, shares=shares)
        for name, (settings, objective) in matrix.items()
    }
    found = on_ranks(tmp_path, cases)
    for name, case in cases.items():
        check(name, case, found[name])
