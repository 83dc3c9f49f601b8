"""The learner: DeepSpeed on one rank in this process, and on two under Ray Train."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from actors.learner.buffer import Finished, Started, Stepped
from actors.learner.config import LoraConfig, ModelConfig, Objective, RlLearnerConfig
from actors.learner.learner import Learner
from actors.learner.lora import add_adapters
from actors.learner.model.load import load_model
from actors.learner.policy import PackedPolicy, to_tensors
from actors.learner.step_report import StepReport
from cluster.learner_group import LearnerGroup
from cluster.resources import PlacementConfig
from coa.errors import UserError
from coa.learning.orders import Train
from coa.learning.packing import PackingConfig, micro_batch
from coa.learning.schedule import OptimizerConfig
from coa.storage.checkpoints import open_folder
from coa.storage.keeping import Keeping
from coa.types import Sample
from tests.support import ranks
from tests.support.patience import PATIENCE_S
from tests.support.tiny import make_model, random_sample

STEPS = 3
CONFIG = RlLearnerConfig(
    # So much decay that leaving it out would show in every comparison of weights here.
    optimizer=OptimizerConfig(lr=1e-3, warmup_steps=2, weight_decay=0.5),
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


def learn(model: Path, config: RlLearnerConfig, dtype: str = "float32") -> tuple[Learner, list[StepReport]]:
    learner = Learner(model, ModelConfig(dtype=dtype), config, steps=STEPS)
    return learner, [learner.step(batch, version) for version, batch in enumerate(batches())]


def weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    weights = ranks.weights_of(learner)
    assert weights is not None
    return load(weights.tobytes())


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max((one[name].float() - other[name].float()).abs().max().item() for name in one)


@pytest.fixture(scope="module")
def plainly(model: Path, one_rank: None) -> tuple[dict[str, torch.Tensor], list[StepReport]]:
    learner, reports = learn(model, CONFIG)
    return weights_of(learner), reports


FITTING: dict[str, dict[str, Any]] = {
    "stage 2": {"zero_stage": 2},
    "stage 3": {"zero_stage": 3},
    "checkpointing": {"gradient_checkpointing": True},
    "offloaded optimizer": {"offload_optimizer": True},
    "all of it": {
        "zero_stage": 3,
        "gradient_checkpointing": True,
        "offload_optimizer": True,
        "offload_parameters": True,
    },
}


@pytest.mark.parametrize("settings", FITTING.values(), ids=FITTING)
def test_what_makes_a_model_fit_changes_nothing_that_it_learns(
    settings: dict[str, Any], model: Path, plainly: tuple[dict[str, torch.Tensor], list[StepReport]]
) -> None:
    learner, reports = learn(model, replace(CONFIG, **settings))
    weights, expected = plainly
    for mine, theirs in zip(reports, expected, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
    assert distance(weights_of(learner), weights) < 2e-5


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_learns_nearly_the_same(
    stage: int, model: Path, plainly: tuple[dict[str, torch.Tensor], list[StepReport]]
) -> None:
    learner, reports = learn(model, replace(CONFIG, zero_stage=stage), "bfloat16")
    weights, expected = plainly
    for mine, theirs in zip(reports, expected, strict=True):
        assert mine.loss == pytest.approx(theirs.loss, abs=0.002)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=0.01)
    found = weights_of(learner)
    assert {weight.dtype for weight in found.values()} == {torch.bfloat16}
    assert distance(found, weights) < 0.01


def test_steps_too_small_for_bfloat16_add_up_in_the_float32_weights(model: Path, one_rank: None) -> None:
    """A weight of 0.02 is 0.0001 from the next one in bfloat16: steps of 0.00001 would be lost one by one."""
    config = replace(CONFIG, optimizer=OptimizerConfig(lr=1e-5), packing=PackingConfig(row_tokens=512, rows=1))
    learner = Learner(model, ModelConfig(dtype="bfloat16"), config, steps=30)
    name = "model.layers.0.mlp.up_proj.weight"
    before = weights_of(learner)[name].float()
    for version in range(30):
        learner.step(batches()[0][:2], version)
    moved = (weights_of(learner)[name].float() - before).abs()[before.abs() > 0.02]
    assert moved.mean() == pytest.approx(3e-4, rel=0.3)


def test_with_checkpointing_each_layer_is_computed_twice(model: Path, one_rank: None) -> None:
    for checkpointing, expected in ((False, 1), (True, 2)):
        config = replace(CONFIG, gradient_checkpointing=checkpointing, packing=PackingConfig(row_tokens=512, rows=1))
        learner = Learner(model, ModelConfig(), config, steps=1)
        calls: list[int] = []
        learner.policy.model.model.layers[0].mlp.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        learner.step(batches()[0][:2], 0)
        assert len(calls) == expected


LORA = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "up_proj"))


@pytest.mark.parametrize(
    ("stage", "dtype", "checkpointing"),
    [(1, "float32", False), (3, "float32", True), pytest.param(3, "bfloat16", False, marks=pytest.mark.slow)],
)
def test_adapters_are_trained_and_published_merged(
    stage: int, dtype: str, checkpointing: bool, model: Path, one_rank: None, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    start = load_model(model, ModelConfig(dtype=dtype)).state_dict()
    config = replace(CONFIG, zero_stage=stage, lora=LORA, gradient_checkpointing=checkpointing)
    learner, reports = learn(model, config, dtype)
    assert reports[0].loss != reports[2].loss
    found = weights_of(learner)
    assert found.keys() == start.keys()
    for name, weight in found.items():
        change = weight.float() - start[name].float()
        if "q_proj" in name or "up_proj" in name:
            assert change.abs().max() > 1e-4, name
            if dtype == "float32":  # rounding the sum to bfloat16 gives it every rank
                assert torch.linalg.matrix_rank(change, rtol=1e-3) <= 4, name
        else:
            assert torch.equal(weight, start[name]), name
    sample = batches()[0][0]
    [expected] = learner.logprobs([sample])
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside" / "agent.json").write_text("{}")
    learner.save_model(tmp_path / "merged", tmp_path / "beside")
    assert (tmp_path / "merged" / "agent.json").read_text() == "{}"
    merged = PackedPolicy(load_model(tmp_path / "merged", ModelConfig(dtype=dtype)))
    with torch.no_grad():
        again = merged(**to_tensors(micro_batch([[sample]]), torch.device("cpu"))).numpy()
    assert np.abs(again - expected).max() < (1e-5 if dtype == "float32" else 0.02)


def test_adapters_for_layers_that_are_not_there_are_refused(model: Path, one_rank: None) -> None:
    pytest.importorskip("peft")
    config = replace(CONFIG, lora=LoraConfig(rank=4, targets=("c_attn",)))
    with pytest.raises(UserError, match=r"learner\.lora\.targets: .*c_attn"):
        Learner(model, ModelConfig(), config, steps=1)


def test_layers_that_are_not_there_are_named_all_in_one_line_beside_those_that_are(model: Path) -> None:
    pytest.importorskip("peft")
    lora = LoraConfig(rank=4, targets=("qproj", "k_proj", "gate_porj", "Down_proj"))
    with pytest.raises(UserError) as refused:
        add_adapters(load_model(model, ModelConfig()), lora)
    assert str(refused.value) == (
        "learner.lora.targets: Down_proj, gate_porj, qproj not found: Qwen3ForCausalLM has down_proj, gate_proj, "
        "k_proj, lm_head, o_proj, q_proj, up_proj, v_proj; all-linear takes all but the output projection"
    )


RESUMED: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({}, "float32"),
    "bfloat16, stage 3, offloaded": ({"zero_stage": 3, "offload_optimizer": True}, "bfloat16"),
    "adapters": ({"lora": LORA}, "float32"),
    "adapters, bfloat16, stage 3": ({"lora": LORA, "zero_stage": 3}, "bfloat16"),
}


@pytest.mark.parametrize(("settings", "dtype"), RESUMED.values(), ids=RESUMED)
def test_a_learner_goes_on_from_its_checkpoint_as_if_nothing_had_happened(
    settings: dict[str, Any], dtype: str, model: Path, one_rank: None, tmp_path: Path
) -> None:
    config = replace(CONFIG, **settings)
    if config.lora.rank:
        pytest.importorskip("peft")
    first, second, third = batches()
    learner = Learner(model, ModelConfig(dtype=dtype), config, steps=STEPS)
    learner.step(first, 0)
    learner.step(second, 1)
    ranks.save(learner, tmp_path)
    expected = learner.step(third, 2)
    other = Learner(model, ModelConfig(dtype=dtype), config, steps=STEPS)
    other.restore(tmp_path)
    assert other.step(third, 2) == expected
    assert distance(weights_of(other), weights_of(learner)) == 0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"offload_parameters": True}, "offload_parameters needs"),
        ({"ranks": 4, "sequence_parallel": 3}, "sequence_parallel is 3, expected a divisor of ranks=4"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RlLearnerConfig(**settings)


JOIN = """
import sys
import torch.distributed as dist
from actors.learner.zero import join_process_group
dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
join_process_group()
"""


def test_a_lock_that_a_killed_build_left_keeps_no_learner_waiting(tmp_path: Path) -> None:
    folder = tmp_path / "extensions" / "deepspeed_shm_comm"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    environment = os.environ | {"TORCH_EXTENSIONS_DIR": str(folder.parent), "LOCAL_RANK": "0"}
    done = subprocess.run(
        [sys.executable, "-c", JOIN, tmp_path / "store"], env=environment, check=False, timeout=2 * PATIENCE_S
    )
    assert done.returncode == 0


def test_splitting_a_batch_into_updates_keeps_the_proximal_policy(model: Path, one_rank: None) -> None:
    """With one update the ratio is 1 throughout; with two, the second one sees a policy that has moved."""
    config = RlLearnerConfig(optimizer=OptimizerConfig(lr=0.05), updates_per_batch=2, threads=1)
    learner = Learner(model, ModelConfig(), config, steps=1)
    rng = np.random.default_rng(2)
    assert learner.step([random_sample(rng, 300) for _ in range(8)], 0).clip_fraction > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "shared"),
    [
        pytest.param({}, 1, id="stage 1"),
        pytest.param({"zero_stage": 3, "gradient_checkpointing": True, "lora": LORA}, 1, id="stage 3, adapters"),
        pytest.param({"zero_stage": 3}, 2, id="stage 3, a row on both"),
        pytest.param({"packing": replace(CONFIG.packing, share_prefixes=False)}, 1, id="stage 1, each token anew"),
    ],
)
def test_two_ranks_learn_what_one_does(
    settings: dict[str, Any], shared: int, model: Path, one_rank: None, ray_session: None, tmp_path: Path
) -> None:
    config = replace(CONFIG, **settings)
    if config.lora.rank:
        pytest.importorskip("peft")
    alone, reports = learn(model, config)
    told = asyncio.run(learn_on_two_ranks(model, replace(config, ranks=2, sequence_parallel=shared), tmp_path))
    for mine, theirs in zip([event.report for event in told], reports, strict=True):
        assert mine.samples == theirs.samples == 7
        assert mine.tokens == theirs.tokens
        assert mine.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert mine.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-4)
    saved = load((tmp_path / "trained" / "model.safetensors").read_bytes())
    assert distance(saved, weights_of(alone)) < 1e-5


@pytest.mark.slow
def test_learners_that_are_interrupted_end_with_the_thread_that_waits_for_them(
    model: Path, ray_session: None, tmp_path: Path
) -> None:
    """Else it is in Ray's core when Ray is shut down, and the process ends by SIGSEGV now and then."""

    async def interrupt(learning: LearnerGroup) -> None:
        async with learning:
            assert isinstance(await anext(learning.events()), Started)
            raise KeyError

    async def interrupted() -> LearnerGroup:
        learning = learning_of(model, CONFIG, tmp_path)
        with pytest.raises(KeyError):
            await interrupt(learning)
        return learning

    learning = asyncio.run(interrupted())
    thread = learning._thread
    assert thread is not None
    assert not thread.is_alive()
    assert learning._ended.exception() is None, "or asyncio would print it"


def learning_of(model: Path, config: RlLearnerConfig, folder: Path) -> LearnerGroup:
    return LearnerGroup(
        "learners",
        keeping=Keeping(folder=open_folder(folder / "checkpoints"), every=100),
        placement=PlacementConfig(),
        model_dir=model,
        model=ModelConfig(),
        learner=config,
        objective=Objective(),
        steps=STEPS,
        publish=False,
        output=folder / "trained",
    )


async def learn_on_two_ranks(model: Path, config: RlLearnerConfig, folder: Path) -> list[Stepped]:
    import ray

    learning = learning_of(model, config, folder)
    told: list[Stepped] = []
    async with learning:

        async def feed(epoch: int) -> None:
            for version, batch in enumerate(batches()):
                ways = config.replicas
                shares: tuple[Any, ...] = tuple((ray.put(tuple(batch[at::ways])),) for at in range(ways))
                assert await learning.put(Train(version=version, shares=shares, cursor=version), epoch)

        async for event in learning.events():
            match event:
                case Started():
                    assert event.shares_prefixes is config.packing.share_prefixes
                    learning.spawn(feed(event.epoch))
                case Stepped():
                    told.append(event)
                case Finished():
                    pass
    return told
