"""What DeepSpeed makes of a model in bfloat16: what must stay float32 in it, and what it computes with that."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import actors.learner.learner
from actors.learner.config import LoraConfig, ModelConfig, Objective, RlLearnerConfig
from actors.learner.deepspeed_settings import deepspeed_config
from actors.learner.learner import Learner
from actors.learner.model.load import load_model
from actors.learner.policy import PackedPolicy, TrainedPolicy, to_tensors
from actors.learner.zero import choose_accelerator, join_process_group
from coa.errors import UserError
from coa.learning.packing import micro_batch
from coa.learning.samples import all_trained
from tests.support.families import made, tiny_config
from tests.support.tiny import make_model

KL = Objective(settings={"kl_weight": 0.1})
VALUES = Objective(algorithm="ppo", settings={"gae_lambda": 0.9})
BFLOAT16 = ModelConfig(dtype="bfloat16")
HEAD_DIM, THETA = 32, 10_000.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights so large that a token's position matters."""
    return make_model(tmp_path_factory.mktemp("model"), initializer_range=0.2, max_positions=4096)


@pytest.mark.parametrize(("backend", "chosen"), [("gloo", "cpu"), ("nccl", None)])
def test_ranks_that_communicate_on_the_cpu_leave_the_gpus_alone(
    backend: str, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_backend", lambda: backend)
    with monkeypatch.context() as patch:
        patch.delenv("DS_ACCELERATOR", raising=False)
        choose_accelerator()
        found = os.environ.get("DS_ACCELERATOR")
    assert found == chosen


def frequencies(policy: Any) -> Tensor:
    return policy.model.model.rotary_emb.inv_freq


@pytest.mark.parametrize("stage", [1, 3])
def test_rotary_frequencies_stay_float32_in_the_policy_and_in_the_reference(
    stage: int, model: Path, one_rank: None
) -> None:
    learner = Learner(model, BFLOAT16, RlLearnerConfig(zero_stage=stage, threads=1), steps=1, objective=KL)
    reference: Any = learner._passes._reference
    exact = 1.0 / THETA ** (torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM)
    for policy in (learner.policy, reference.module if stage == 3 else reference):
        assert next(policy.parameters()).dtype == torch.bfloat16
        assert frequencies(policy).dtype == torch.float32
        torch.testing.assert_close(frequencies(policy), exact, rtol=1e-6, atol=0)


def test_a_long_sample_has_the_log_probs_of_the_model_that_nothing_shards(model: Path, one_rank: None) -> None:
    sample = all_trained(np.random.default_rng(0).integers(0, 300, 3000).astype(np.int32))
    learner = Learner(model, BFLOAT16, RlLearnerConfig(zero_stage=3, threads=1), steps=1)
    [found] = learner.logprobs([sample])
    plain = PackedPolicy(load_model(model, BFLOAT16))
    with torch.no_grad():
        expected = plain(**to_tensors(micro_batch([[sample]]), torch.device("cpu"))).numpy()
    assert np.abs(found - expected).max() < 0.1


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_of_a_bfloat16_model_are_summed_in_float32(stage: int, model: Path, one_rank: None) -> None:
    engine = Learner(model, BFLOAT16, RlLearnerConfig(zero_stage=stage, threads=1), steps=1).engine
    assert engine.communication_data_type == torch.float32
    if stage > 1:  # at stage 1 DeepSpeed has the engine reduce them
        assert list(engine.optimizer.ipg_buckets) == [torch.float32]


def test_values_of_a_bfloat16_model_are_finer_than_bfloat16(model: Path, one_rank: None) -> None:
    learner = Learner(model, BFLOAT16, RlLearnerConfig(zero_stage=3, threads=1), steps=1, objective=VALUES)
    import deepspeed

    head: Any = learner.policy.value_head
    with deepspeed.zero.GatheredParameters(list(head.parameters()), modifier_rank=0):
        torch.nn.init.normal_(head.weight, std=0.3, generator=torch.Generator().manual_seed(0))
    sample = all_trained(np.arange(50, dtype=np.int32))
    with torch.no_grad():
        values = learner.engine(**to_tensors(micro_batch([[sample]]), torch.device("cpu"))).values
    assert values.dtype == torch.float32
    assert not torch.equal(values, values.bfloat16().float())


def test_a_model_with_dropout_is_trained_without_it(one_rank: None, tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    config = folder / "config.json"
    text = config.read_text()
    assert '"attention_dropout": 0.0' in text
    config.write_text(text.replace('"attention_dropout": 0.0', '"attention_dropout": 0.5'))
    learner = Learner(folder, ModelConfig(), RlLearnerConfig(threads=1), steps=1)
    assert learner.policy.training
    sample = all_trained(np.arange(50, dtype=np.int32))
    first, again = learner.logprobs([sample, sample])
    assert np.array_equal(first, again)


def test_a_rank_trains_in_the_way_in_which_its_model_agrees_with_itself(
    model: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert str(Learner(model, ModelConfig(), RlLearnerConfig(threads=1), steps=1).parity).startswith(
        "samples in packed"
    )

    class Apart(TrainedPolicy):
        def compared(self, samples: Any, run: Any) -> list[Tensor]:
            return [one + 1.0 * self.way.packed for one in super().compared(samples, run)]

    monkeypatch.setattr("actors.learner.learner.TrainedPolicy", Apart)
    learner = Learner(model, ModelConfig(), RlLearnerConfig(threads=1), steps=1)
    assert (learner.policy.way, learner.policy.way.packed) == (learner.parity.way, False)


def test_a_rank_refuses_a_model_that_would_not_be_written_as_it_was_trained(tmp_path: Path, one_rank: None) -> None:
    made(tiny_config("hrm_text"), tmp_path)
    config = RlLearnerConfig(threads=1, lora=LoraConfig(rank=2, targets=("all-linear",)))
    with pytest.raises(UserError, match="with its adapters merged it is"):
        Learner(tmp_path, ModelConfig(path=str(tmp_path)), config, steps=1)


def test_adapters_of_embeddings_are_refused(model: Path, one_rank: None) -> None:
    pytest.importorskip("peft")
    config = RlLearnerConfig(lora=LoraConfig(rank=4, targets=("q_proj", "embed_tokens")), threads=1)
    with pytest.raises(UserError, match=r"learner\.lora\.targets: embed_tokens are embeddings"):
        Learner(model, ModelConfig(), config, steps=1)


def test_a_rank_that_starts_tries_no_operation_of_deepspeed(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would compile, and query GPUs, for seconds."""
    import deepspeed

    monkeypatch.delitem(vars(deepspeed.ops), "__compatible_ops__", raising=False)
    monkeypatch.setattr(deepspeed.ops, "_probe_compatible_ops", lambda: pytest.fail("they were tried"))
    join_process_group()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_takes_the_settings_of_a_gpu(
    stage: int, one_rank: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it refuses does not depend on the device."""
    monkeypatch.setattr(
        actors.learner.learner, "deepspeed_config", lambda config, dtype, gpu: deepspeed_config(config, dtype, gpu=True)
    )
    config = RlLearnerConfig(zero_stage=stage, threads=0)
    found = Learner(make_model(tmp_path / "model"), ModelConfig(), config, steps=1)
    assert found.engine.zero_overlap_comm() is (stage > 1)
