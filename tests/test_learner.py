"""The learner: DeepSpeed on one rank in this process, and on two under Ray Train."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load

from actors.buffer import Finished, Plan, Started, Stepped
from actors.learner import Learner, LearnerConfig, OptimizerConfig, learning_rate
from actors.policy import ModelConfig, PackedPolicy, load_model, new_model, to_tensors
from cluster.resources import PlacementConfig
from coa.errors import UserError
from coa.packing import PackingConfig, micro_batch
from coa.types import Sample
from jobs.learning import Learning
from tests.tiny import make_model, random_sample

STEPS = 3
CONFIG = LearnerConfig(
    optimizer=OptimizerConfig(lr=1e-3, warmup_steps=2, weight_decay=0.01),
    packing=PackingConfig(row_tokens=96, rows=2),
    threads=1,
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def batches() -> list[list[Sample]]:
    """Odd sizes, so that ranks hold different numbers of samples and micro-batches."""
    rng = np.random.default_rng(0)
    return [[random_sample(rng, 300, imitate=step % 2 == 0, version=step) for _ in range(7)] for step in range(STEPS)]


def test_the_rate_warms_up_stays_and_decays() -> None:
    config = OptimizerConfig(lr=1.0, warmup_steps=2, flat_share=0.5)
    assert [learning_rate(step, 8, config) for step in range(8)] == [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert learning_rate(7, 8, OptimizerConfig(lr=1.0)) == 1.0


def test_packed_rows_give_the_logprobs_of_single_samples(model: Path) -> None:
    policy = PackedPolicy(load_model(model, ModelConfig()))
    rng = np.random.default_rng(1)
    samples = [random_sample(rng, 300) for _ in range(5)]

    def logprobs(rows: list[list[Sample]]) -> np.ndarray:
        with torch.no_grad():
            return policy(**to_tensors(micro_batch(rows), torch.device("cpu"))).numpy()

    alone = np.concatenate([logprobs([[sample]]) for sample in samples])
    packed = logprobs([samples[:3], samples[3:]])
    assert np.abs(alone - packed).max() < 1e-5


def test_tied_embeddings_are_refused(tmp_path: Path) -> None:
    from coa.tokenizer import train_tokenizer

    tied = new_model(ModelConfig(hidden_size=32, layers=1), train_tokenizer(["a"], (), vocabulary=500), seed=0)
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    tied.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="tied embeddings"):
        load_model(tmp_path, ModelConfig())


def test_splitting_a_batch_into_updates_keeps_the_proximal_policy(model: Path, one_rank: None) -> None:
    """With one update the ratio is 1 throughout; with two, the second one sees a policy that has moved."""
    config = LearnerConfig(optimizer=OptimizerConfig(lr=0.05), updates_per_batch=2, threads=1)
    learner = Learner(model, ModelConfig(), config, steps=1)
    rng = np.random.default_rng(2)
    assert learner.step([random_sample(rng, 300) for _ in range(8)], 0).clipped > 0


def test_two_ranks_learn_what_one_does(model: Path, one_rank: None, ray_session: None, tmp_path: Path) -> None:
    alone = Learner(model, ModelConfig(), CONFIG, steps=STEPS)
    reports = [alone.step(batch, version) for version, batch in enumerate(batches())]
    told = asyncio.run(learn_on_two_ranks(model, tmp_path))
    for mine, theirs in zip([event.report for event in told], reports, strict=True):
        assert mine.samples == theirs.samples == 7
        assert mine.tokens == theirs.tokens
        assert mine.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
    weights = alone.weights()
    assert weights is not None
    trained = load((tmp_path / "trained" / "model.safetensors").read_bytes())
    for name, expected in load(weights.tobytes()).items():
        assert np.abs(trained[name] - expected).max() < 1e-5


async def learn_on_two_ranks(model: Path, folder: Path) -> list[Stepped]:
    import ray

    learning = Learning(
        "two-ranks",
        checkpoints=folder / "checkpoints",
        placement=PlacementConfig(),
        model_dir=model,
        model=ModelConfig(),
        learner=LearnerConfig(optimizer=CONFIG.optimizer, packing=CONFIG.packing, threads=1, ranks=2),
        steps=STEPS,
        publish=False,
        checkpoint_every=100,
        output=folder / "trained",
    )
    told: list[Stepped] = []
    async with learning:

        async def feed(epoch: int) -> None:
            for version, batch in enumerate(batches()):
                shares: tuple[Any, ...] = tuple((ray.put(tuple(batch[rank::2])),) for rank in range(2))
                assert await learning.put(Plan(version=version, shares=shares, cursor=version), epoch)

        async for event in learning.events():
            match event:
                case Started():
                    learning.beside(feed(event.epoch))
                case Stepped():
                    told.append(event)
                case Finished():
                    pass
    return told
