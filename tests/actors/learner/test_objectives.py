"""What a learner learns by, on one rank: temperature, values, an algorithm of a user's own, and what a step reports."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.learner.config import LoraConfig, ModelConfig, Objective, RlLearnerConfig, ValueHeadConfig
from actors.learner.learner import Learner
from actors.learner.model.load import load_model
from actors.learner.policy import to_tensors
from coa.learning import faults
from coa.learning.algorithms import DEFAULT, make
from coa.learning.algorithms.base import SAMPLED, LossSums, Needs, Sum, TokenBatch, TokenTargets, Totals
from coa.learning.losses import Level, LossConfig, Proximal
from coa.learning.packing import PackingConfig, micro_batch
from coa.learning.schedule import OptimizerConfig
from coa.types import Mask, Sample
from tests.support.ranks import save
from tests.support.tiny import make_model, random_sample

CONFIG = RlLearnerConfig(
    optimizer=OptimizerConfig(lr=1e-3),
    packing=PackingConfig(row_tokens=96, rows=2),
    threads=1,
    # Around the policy of the batch nothing is clipped, so that any step has a gradient.
    loss=LossConfig(proximal=Proximal.recomputed),
)
LORA = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "up_proj"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its logits are far apart."""
    return make_model(tmp_path_factory.mktemp("model"), initializer_range=0.2)


def distribution(model: Path, sample: Sample, temperature: float) -> Tensor:
    """[P, V] log-probs at the trained tokens, by the model's own forward pass."""
    token_ids = torch.from_numpy(sample.token_ids).long()
    with torch.no_grad():
        logits = load_model(model, ModelConfig())(token_ids[None]).logits[0].float()
    return (logits / temperature).log_softmax(-1)[np.nonzero(sample.loss_mask)[0] - 1]


def sampled_at(model: Path, temperature: float) -> list[Sample]:
    """Samples whose log-probs are the model's at that temperature."""
    rng = np.random.default_rng(3)
    found: list[Sample] = []
    for sample in (random_sample(rng, 300) for _ in range(5)):
        chosen = torch.from_numpy(sample.token_ids[sample.loss_mask]).long()
        rollout = np.zeros(len(sample), np.float32)
        rollout[sample.loss_mask] = distribution(model, sample, temperature).gather(1, chosen[:, None])[:, 0].numpy()
        found.append(replace(sample, rollout_logprobs=rollout))
    return found


@dataclass(frozen=True)
class IgnoresValues:
    """An algorithm that asks for values, and has none of them in its loss."""

    inner: Any

    @property
    def needs(self) -> Needs:
        return Needs(values=True)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def test_a_loss_without_values_gives_their_head_a_gradient_of_zero(model: Path, one_rank: None) -> None:
    """As a filler does: else ranks would wait for one another with different gradients to reduce."""
    learner = learner_of(model, algorithm="ppo", settings={"gae_lambda": 0.9})
    learner.algorithm = IgnoresValues(make(DEFAULT, learner.config.loss, {}))  # pyright: ignore[reportAttributeAccessIssue]
    losses: list[Tensor] = []
    learner.engine.backward = losses.append
    learner.engine.step = lambda: None
    learner.step(sampled_at(model, 1.0)[:1], 0)
    head = learner.policy.value_head
    assert head is not None
    [gradient] = torch.autograd.grad(losses[0], [head.weight])
    assert not gradient.any()


def learner_of(model: Path, config: RlLearnerConfig = CONFIG, steps: int = 3, **objective: object) -> Learner:
    return Learner(model, ModelConfig(), config, steps=steps, objective=Objective(**objective))  # pyright: ignore[reportArgumentType]


def test_log_probs_are_those_of_the_temperature_that_was_sampled_at(model: Path, one_rank: None) -> None:
    samples = sampled_at(model, 0.7)
    report = learner_of(model, temperature=0.7).step(samples, 0)
    assert report.logprob_max_diff is not None
    assert report.logprob_max_diff < 1e-5
    assert report.fresh_tokens == report.tokens
    assert report.kl_rollout == pytest.approx(0, abs=1e-6)
    assert report.algorithm["correction_weight"] == pytest.approx(1, abs=1e-5)
    reinforce = np.concatenate([sample.reinforce[sample.loss_mask] for sample in samples])
    assert report.loss == pytest.approx(-reinforce.mean(), abs=1e-5)
    # At another temperature the same samples look as if another policy had made them.
    other = learner_of(model).step(samples, 0)
    assert other.logprob_max_diff is not None
    assert other.logprob_max_diff > 0.1
    old = learner_of(model, temperature=0.7).step(samples, 2)
    assert (old.fresh_tokens, old.logprob_max_diff, old.logprob_mean_diff) == (0, None, None)
    assert abs(other.kl_rollout) > 0.01


def test_probes_are_of_the_model_itself_at_any_temperature(model: Path, one_rank: None) -> None:
    [sample, *_] = sampled_at(model, 1.0)
    [found] = learner_of(model, temperature=0.7).logprobs([sample])
    assert np.abs(found - sample.rollout_logprobs[sample.loss_mask]).max() < 1e-5


def test_a_step_reports_entropy_divergence_and_rate(model: Path, one_rank: None) -> None:
    samples = [replace(s, rollout_logprobs=s.rollout_logprobs + np.float32(0.25)) for s in sampled_at(model, 0.7)]
    report = learner_of(model, temperature=0.7).step(samples, 0)
    every = torch.cat([distribution(model, sample, 0.7) for sample in samples])
    assert report.entropy == pytest.approx(float(-(every.exp() * every).sum(-1).mean()), rel=1e-5)
    assert 0.1 < report.entropy < math.log(every.shape[1])
    assert report.kl_rollout == pytest.approx(0.25, abs=1e-5)
    assert report.algorithm["correction_weight"] == pytest.approx(math.exp(-0.25), abs=1e-5)
    assert (report.lr, report.ratio_mean, report.clip_fraction) == (1e-3, 1.0, 0.0)
    assert report.truncated_weight_fraction == 0.0
    far = [replace(s, rollout_logprobs=s.rollout_logprobs - np.float32(3)) for s in samples]
    assert learner_of(model, temperature=0.7).step(far, 0).truncated_weight_fraction == 1.0
    silent = learner_of(model, replace(CONFIG, entropy=False), temperature=0.7).step(samples, 0)
    assert (silent.entropy, silent.loss) == (0.0, report.loss)


def test_what_is_only_imitated_has_neutral_figures(model: Path, one_rank: None) -> None:
    rng = np.random.default_rng(0)
    shown = [random_sample(rng, 300, imitate=True, version=-1) for _ in range(3)]
    report = learner_of(model, algorithm="imitation").step(shown, 0)
    assert (report.kl_rollout, report.clip_fraction, report.ratio_mean) == (0.0, 0.0, 1.0)
    assert (report.staleness_mean, report.fresh_tokens, report.logprob_max_diff) == (0.0, 0, None)
    assert dict(report.algorithm) == {"imitation_loss": pytest.approx(report.loss)}
    assert learner_of(model).step(shown, 0).loss == report.loss


def test_a_value_head_learns_the_reward_and_is_kept_and_not_published(
    model: Path, one_rank: None, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    samples = [
        replace(sample, reinforce=np.where(sample.loss_mask, np.float32(0.75), np.float32(0)))
        for sample in (random_sample(rng, 300) for _ in range(6))
    ]
    config = replace(CONFIG, optimizer=OptimizerConfig(lr=3e-3), value_head=ValueHeadConfig(lr=1e-2))
    learner = learner_of(model, config, 30, algorithm="ppo")
    reports = [learner.step(samples, version).algorithm for version in range(30)]
    assert reports[0]["value_mean"] == 0
    assert reports[0]["value_error"] == pytest.approx(0.75**2)
    assert reports[0]["return_mean"] == pytest.approx(0.75)
    assert reports[-1]["value_mean"] == pytest.approx(0.75, abs=0.1)
    assert reports[-1]["value_error"] < reports[0]["value_error"] / 4
    save(learner, tmp_path / "checkpoint")
    learner.save_model(tmp_path / "saved")
    again = learner_of(model, config, 30, algorithm="ppo")
    again.restore(tmp_path / "checkpoint")
    assert again.step(samples, 29) == learner.step(samples, 29)
    assert (
        load_model(tmp_path / "saved", ModelConfig()).state_dict().keys()
        == load_model(model, ModelConfig()).state_dict().keys()
    )


def test_the_value_loss_trains_the_head_alone(model: Path, one_rank: None) -> None:
    """As a critic of its own would: the policy's gradient is that of its own loss."""
    learner = learner_of(model, algorithm="ppo")
    head = learner.policy.value_head
    assert head is not None
    head.weight.data.fill_(1.0)
    [sample, *_] = sampled_at(model, 1.0)
    outputs = learner.policy(**to_tensors(micro_batch([[sample]]), learner.device))
    outputs.values.sum().backward()
    trained = {name for name, p in learner.policy.named_parameters() if p.grad is not None and p.grad.any()}
    assert trained == {"value_head.weight", "value_head.bias"}


def test_an_algorithm_knows_the_range_of_the_batch_s_rewards(
    model: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    samples = [
        replace(sample, group=group, reinforce=np.where(sample.loss_mask, np.float32(reward), np.float32(-9)))
        for group, (sample, reward) in enumerate((random_sample(rng, 300), reward) for reward in (0.25, 1.0, 0.5))
    ]
    shown = random_sample(rng, 300, imitate=True, version=-1)
    learner = learner_of(model, replace(CONFIG, updates_per_batch=2), algorithm="ppo")
    seen: list[tuple[float, float]] = []
    loss = type(learner.algorithm).loss

    def noted(self: Any, batch: TokenBatch, totals: Totals) -> LossSums:
        seen.append(batch.bounds)
        return loss(self, batch, totals)

    monkeypatch.setattr(type(learner.algorithm), "loss", noted)
    learner.step([*samples, shown], 0)
    assert len(seen) >= 2
    assert set(seen) == {(0.25, 1.0)}


@pytest.mark.parametrize("lora", [LoraConfig(), LORA], ids=["a model", "below adapters"])
def test_the_value_head_has_a_rate_of_its_own_and_is_restored_with_the_rest(
    model: Path, lora: LoraConfig, one_rank: None, tmp_path: Path
) -> None:
    """The first step of AdamW moves every weight that has a gradient by the rate."""
    samples = sampled_at(model, 1.0)
    config = replace(CONFIG, lora=lora, value_head=ValueHeadConfig(lr=0.02, warmup_ratio=0.5))
    learner = learner_of(model, config, 4, algorithm="ppo")
    before = {name: p.detach().clone() for name, p in learner.policy.named_parameters() if p.requires_grad}
    assert learner.step(samples, 0).lr == 1e-3
    moved = {
        name: float((p.detach() - before[name]).abs().max())
        for name, p in learner.policy.named_parameters()
        if name in before
    }
    head = {name: moved.pop(name) for name in ("value_head.weight", "value_head.bias")}
    assert list(head.values()) == pytest.approx([0.01, 0.01], rel=1e-3), "half of the way up"
    assert max(moved.values()) == pytest.approx(1e-3, rel=1e-2)
    save(learner, tmp_path / "checkpoint")
    again = learner_of(model, config, 4, algorithm="ppo")
    again.restore(tmp_path / "checkpoint")
    assert again.step(samples, 1) == learner.step(samples, 1)


def test_the_age_of_each_token_says_how_far_the_proximal_policy_is(model: Path, one_rank: None) -> None:
    """Sampled three versions ago, 0.3 nats below the present policy: a third of it is the step, the rest is age."""
    samples = [replace(s, rollout_logprobs=s.rollout_logprobs - np.float32(0.3)) for s in sampled_at(model, 1.0)]
    config = replace(CONFIG, loss=LossConfig(proximal=Proximal.interpolated))
    report = learner_of(model, config, 9).step(samples, 3)
    assert report.ratio_mean == pytest.approx(math.exp(0.1), rel=1e-5)
    assert report.algorithm["correction_weight"] == pytest.approx(math.exp(0.2), rel=1e-5)
    config = replace(CONFIG, loss=LossConfig(proximal=Proximal.sampler, reject=Level.tokens))
    report = learner_of(model, config, 9).step(samples, 3)
    assert report.ratio_mean == pytest.approx(math.exp(0.3), rel=1e-5)
    assert (report.algorithm["correction_weight"], report.algorithm["rejected_weight_fraction"]) == (1.0, 0.0)
    config = replace(CONFIG, loss=LossConfig(reject=Level.tokens, reject_above=1.3))
    fresh = [replace(s, rollout_logprobs=s.rollout_logprobs - np.float32(0.3)) for s in sampled_at(model, 1.0)]
    report = learner_of(model, config, 9).step(
        [replace(s, versions=np.where(s.loss_mask, 3, -1).astype(np.int32)) for s in fresh], 3
    )
    assert report.algorithm["rejected_weight_fraction"] == 1.0  # engine and learner differ, at no age at all
    config = replace(CONFIG, loss=LossConfig(reject=Level.sequences, reject_above=1.1))
    assert learner_of(model, config, 9).step(samples, 3).algorithm["rejected_weight_fraction"] == 1.0


def shortened(mask: Mask) -> Mask:
    """Without its first token: what is left of one turn at the end of a sample, if the mask is shifted by one."""
    return mask & (np.cumsum(mask) > 1)


def test_silent_faults_are_named_in_the_step_that_has_them(model: Path, one_rank: None) -> None:
    samples = sampled_at(model, 1.0)

    def named(faulty: list[Sample]) -> list[str]:
        return faults.of_step(learner_of(model).step(faulty, 0), 1e-4)

    def rolled(sample: Sample) -> Sample:
        logprobs = sample.rollout_logprobs.copy()
        logprobs[sample.loss_mask] = np.roll(logprobs[sample.loss_mask], 1)
        return replace(sample, rollout_logprobs=logprobs)

    assert named(samples) == []
    [said] = named([rolled(sample) for sample in samples])
    assert "one token off" in said
    learner = learner_of(model)
    learner.step(samples, 0)
    assert faults.of_step(learner.step(samples, 1), 1e-4) == [], "they say that they are a version old"
    renamed = [replace(s, versions=np.where(s.loss_mask, 2, -1).astype(np.int32)) for s in samples]
    [said] = faults.of_step(learner.step(renamed, 2), 1e-4)
    assert "engine weights do not match" in said
    by_nobody = [replace(s, versions=np.where(s.loss_mask, 0, -1).astype(np.int32)) for s in samples]
    assert named(by_nobody) == []
    for shift in (1, -1):
        masks = [np.roll(s.loss_mask, shift) & (np.arange(len(s)) > 0) for s in by_nobody]
        *_, said = named([replace(s, loss_mask=mask) for s, mask in zip(by_nobody, masks, strict=True)])
        assert "trained tokens were not sampled by the policy" in said
    [said] = named([replace(s, loss_mask=shortened(s.loss_mask)) for s in by_nobody])
    assert said.startswith(f"{len(by_nobody)} tokens that the policy sampled are not trained")


@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "reinforce_pp", "cispo"])
def test_every_algorithm_makes_what_was_good_likelier(model: Path, name: str, one_rank: None) -> None:
    """Two episodes, one with a reward; three steps, with the reference in the reward."""
    good, bad, *_ = sampled_at(model, 1.0)
    pair = [
        replace(sample, reinforce=np.where(sample.loss_mask, np.float32(credit), np.float32(0)))
        for sample, credit in ((good, 0.5), (bad, -0.5))
    ]
    settings = {"kl_weight": 0.01, "kl_in": "reward", "kl_estimator": "k1"}
    learner = learner_of(model, algorithm=name, settings=settings)
    before = [float(found.sum()) for found in learner.logprobs([good, bad])]
    for version in range(3):
        report = learner.step(pair, version)
        assert math.isfinite(report.loss)
        assert report.grad_norm > 0
    after = [float(found.sum()) for found in learner.logprobs([good, bad])]
    assert after[0] > before[0]
    assert after[1] < before[1]
    assert report.algorithm["kl_reference"] != 0


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, lora=LORA)], ids=["a model", "below adapters"])
def test_the_reference_stays_where_the_stage_began(model: Path, config: RlLearnerConfig, one_rank: None) -> None:
    samples = sampled_at(model, 1.0)
    learner = learner_of(model, config, settings={"kl_weight": 0.1})
    reports = [learner.step(samples, version).algorithm["kl_reference"] for version in range(3)]
    assert reports[0] == pytest.approx(0, abs=1e-9)
    assert reports[0] < reports[1] < reports[2]


def test_an_update_is_of_whole_groups(model: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    samples = [replace(random_sample(rng, 300), group=group) for group in (7, 4, 9, 4, 7, 9, 9)]
    learner = learner_of(model, replace(CONFIG, updates_per_batch=2))
    seen: list[list[list[int]]] = []
    pack = learner._pack

    def noted(share: list[Sample]) -> object:
        seen.append([sample.token_ids.tolist() for sample in share])
        return pack(share)

    monkeypatch.setattr(learner, "_pack", noted)
    learner.step(samples, 0)
    of = {tuple(sample.token_ids.tolist()): sample.group for sample in samples}
    groups = [[of[tuple(ids)] for ids in share] for share in seen]
    assert groups == [[4, 9, 4, 9, 9], [7, 7]]


def test_advantages_are_compared_over_the_batch_of_all_updates(
    model: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    drawn = [replace(random_sample(rng, 300), group=group) for group in range(4)]
    samples = [replace(s, reinforce=np.where(s.loss_mask, np.float32(s.group), np.float32(0))) for s in drawn]
    learner = learner_of(model, replace(CONFIG, updates_per_batch=2), algorithm="reinforce_pp")
    seen: list[tuple[float, float]] = []
    loss = type(learner.algorithm).loss

    def noted(self: Any, batch: TokenBatch, totals: Totals) -> LossSums:
        seen.append((totals["count"], totals["advantages"]))
        return loss(self, batch, totals)

    monkeypatch.setattr(type(learner.algorithm), "loss", noted)
    learner.step(samples, 0)
    tokens = [int(s.loss_mask.sum()) for s in samples]
    assert len(seen) >= 2
    assert set(seen) == {(sum(tokens), sum(s.group * n for s, n in zip(samples, tokens, strict=True)))}


def test_a_batch_of_several_updates_is_measured_by_the_policy_before_it(model: Path, one_rank: None) -> None:
    """Without a proximal pass that policy is known of the first update only."""
    rng = np.random.default_rng(0)
    drawn = [replace(sample, group=group) for group, sample in enumerate(sampled_at(model, 1.0))]
    samples = [replace(s, reinforce=np.where(s.loss_mask, np.float32(rng.normal()), np.float32(0))) for s in drawn]
    several = replace(CONFIG, updates_per_batch=len(samples), optimizer=OptimizerConfig(lr=0.05))
    reports = {
        proximal: learner_of(model, replace(several, loss=LossConfig(proximal=proximal))).step(samples, 0)
        for proximal in (Proximal.recomputed, Proximal.sampler)
    }
    counts = [int(sample.loss_mask.sum()) for sample in samples]
    assert reports[Proximal.recomputed].compared == sum(counts)
    assert reports[Proximal.sampler].compared in counts
    for report in reports.values():
        assert report.fresh_tokens == report.compared
        assert report.kl_rollout == pytest.approx(0, abs=1e-6)


def test_a_token_is_rejected_by_the_policy_before_the_batch_whatever_updates_have_changed(
    model: Path, one_rank: None
) -> None:
    samples = [replace(sample, group=group) for group, sample in enumerate(sampled_at(model, 1.0))]
    loss = LossConfig(proximal=Proximal.sampler, reject=Level.tokens, reject_below=0.99, reject_above=1.01)
    config = replace(CONFIG, updates_per_batch=len(samples), optimizer=OptimizerConfig(lr=0.05), loss=loss)
    assert learner_of(model, config).step(samples, 0).algorithm["rejected_weight_fraction"] == 0


def test_a_mean_over_the_batch_is_that_of_all_updates(
    model: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The example of docs/extending.md: where all rewards are equal, none is away from their mean."""
    monkeypatch.setenv("COA_EXTENSIONS", "docs.examples.plain_reinforce")
    rng = np.random.default_rng(0)
    drawn = [replace(random_sample(rng, 300), group=group) for group in range(4)]
    samples = [replace(s, reinforce=s.loss_mask.astype(np.float32)) for s in drawn]
    learner = learner_of(model, replace(CONFIG, updates_per_batch=2), algorithm="plain_reinforce")
    assert learner.step(samples, 0).algorithm["distance"] == pytest.approx(0, abs=1e-6)


@dataclass(frozen=True)
class ByGroups:
    """An algorithm whose loss and metric are per a total of its own."""

    inner: Any
    name: str = "rewards"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def totals(self, targets: TokenTargets) -> Totals:
        return {self.name: float(targets.reinforce.sum())}

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        found = batch.reinforce.sum()
        return LossSums(
            {"policy_loss": Sum((found - batch.logprobs.sum() * 0), self.name)}, {"ones": Sum(found, self.name)}
        )


def test_a_loss_may_be_divided_by_a_total_of_its_own(model: Path, one_rank: None) -> None:
    rng = np.random.default_rng(0)
    drawn = [replace(random_sample(rng, 300), group=group) for group in range(4)]
    samples = [replace(s, reinforce=s.loss_mask.astype(np.float32)) for s in drawn]
    learner = learner_of(model, replace(CONFIG, updates_per_batch=2))
    learner.algorithm = ByGroups(learner.algorithm)  # pyright: ignore[reportAttributeAccessIssue]
    assert learner.step(samples, 0).algorithm["ones"] == pytest.approx(1.0)
    learner.algorithm = ByGroups(learner.algorithm, SAMPLED)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="totals of ByGroups are named sampled: take other names"):
        learner.step(samples, 1)


def test_an_algorithm_of_ones_own_is_one_file(model: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of docs/extending.md, by the way that a user's file comes in."""
    monkeypatch.setenv("COA_EXTENSIONS", "docs.examples.plain_reinforce")
    rng = np.random.default_rng(0)
    rewards = (1.0, 0.0, 0.25)
    samples = [
        replace(sample, reinforce=np.where(sample.loss_mask, np.float32(reward), np.float32(0)))
        for sample, reward in zip((random_sample(rng, 300) for _ in rewards), rewards, strict=True)
    ]
    learner = learner_of(model, algorithm="plain_reinforce", settings={"scale": 2.0})
    before = [
        float(distribution(model, s, 1.0).gather(1, torch.from_numpy(s.token_ids[s.loss_mask]).long()[:, None]).sum())
        for s in samples
    ]
    counts = [int(sample.loss_mask.sum()) for sample in samples]
    baseline = sum(r * n for r, n in zip(rewards, counts, strict=True)) / sum(counts)
    report = learner.step(samples, 0)
    expected = -sum(2 * (r - baseline) * its for r, its in zip(rewards, before, strict=True)) / 3
    assert report.loss == pytest.approx(expected, rel=1e-4)
    assert report.grad_norm > 0
    apart = sum(2 * abs(r - baseline) * n for r, n in zip(rewards, counts, strict=True)) / sum(counts)
    assert report.algorithm["distance"] == pytest.approx(apart, rel=1e-5)
