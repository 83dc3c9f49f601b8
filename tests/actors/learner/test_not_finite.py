"""Updates that are skipped because something is not finite: what is named, what stays as it was, and what goes on."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from actors.learner.config import ModelConfig, Objective, RlLearnerConfig
from actors.learner.learner import Learner
from coa.errors import UserError
from coa.learning import faults
from coa.learning.algorithms import ALGORITHMS
from coa.learning.algorithms.base import TOKENS, LossSums, Sum, TokenBatch, TokenTargets, Totals
from coa.learning.algorithms.ppo import Ppo
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig
from coa.types import Sample
from tests.support.ranks import save, weights_of
from tests.support.registries import lend
from tests.support.tiny import make_model, random_sample

CONFIG = RlLearnerConfig(
    optimizer=OptimizerConfig(lr=1e-3), packing=PackingConfig(row_tokens=96, rows=1), threads=1, updates_per_batch=1
)
WHOLE = Objective(algorithm="ppo", settings={"kl_weight": 0.1})
"""Needs values and a reference."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def learner_of(model: Path, config: RlLearnerConfig = CONFIG, objective: Objective = WHOLE) -> Learner:
    return Learner(model, ModelConfig(), config, steps=9, objective=objective)


def batch() -> list[Sample]:
    rng = np.random.default_rng(0)
    return [replace(random_sample(rng, 300, imitate=at == 3, version=0), group=at) for at in range(4)]


def poisoned(name: str, at: int, value: float = math.nan, tokens: int = 2) -> list[Sample]:
    """A batch of which the last trained tokens of one sample have `value` for `name`."""
    samples = batch()
    array = getattr(samples[at], name).copy()
    array[np.nonzero(samples[at].loss_mask)[0][-tokens:]] = value
    return [*samples[:at], replace(samples[at], **{name: array}), *samples[at + 1 :]]


@contextmanager
def broken(parameter: torch.nn.Parameter) -> Iterator[None]:
    """One of its numbers is NaN within."""
    before = parameter.detach().clone()
    parameter.data.view(-1)[0] = math.nan
    yield
    parameter.data.copy_(before)


def weights_in(learner: Learner) -> dict[str, torch.Tensor]:
    found = weights_of(learner)
    assert found is not None
    return load(found.tobytes())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("samples", "cause"),
    [
        (poisoned("reinforce", 0), "2 advantages are not finite"),
        (poisoned("reinforce", 1, math.inf, tokens=1), "1 advantages are not finite"),
        (poisoned("imitate", 3), "2 imitation weights are not finite"),
        (poisoned("rollout_logprobs", 2), "2 log-probs of the engine are not finite"),
    ],
)
def test_an_update_with_a_sample_that_is_not_finite_changes_nothing_and_names_it(
    samples: list[Sample], cause: str, model: Path, one_rank: None, tmp_path: Path
) -> None:
    """The optimizer is as it was, too: the step after it is that of a learner without the first, which a learner that
    goes on from a checkpoint in between takes as well."""
    learner, other = learner_of(model), learner_of(model)
    before = weights_in(learner)
    report = learner.step(samples, 0)
    assert (report.updates, report.skipped, report.not_finite) == (0, 1, cause)
    assert (report.samples, report.grad_norm) == (4, math.inf)
    assert faults.of_step(report, None) == [f"nothing was learnt from the batch: {cause}"]
    assert same(weights_in(learner), before)
    save(learner, tmp_path / "checkpoint")
    healthy = learner.step(batch(), 1)
    assert (healthy.updates, healthy.skipped, healthy.not_finite) == (1, 0, None)
    assert math.isfinite(healthy.loss)
    assert healthy == other.step(batch(), 1)
    assert same(weights_in(learner), weights_in(other))
    assert not same(weights_in(learner), before)
    other.restore(tmp_path / "checkpoint")
    assert other.step(batch(), 1) == healthy


def test_what_the_learner_computes_is_named_where_it_first_is_not_finite(model: Path, one_rank: None) -> None:
    learner = learner_of(model)
    reference: Any = learner._passes._reference
    assert learner.policy.value_head is not None
    for parameter, kind in (
        (learner.policy.model.model.norm.weight, "log-probs of the policy"),
        (reference.model.model.norm.weight, "log-probs of the reference"),
        (learner.policy.value_head.bias, "values"),
    ):
        with broken(parameter):
            report = learner.step(batch(), 0)
        assert (report.updates, report.skipped) == (0, 1)
        assert report.not_finite is not None
        assert report.not_finite.endswith(f" {kind} are not finite")
    assert learner.step(batch(), 0).updates == 1


@dataclass(frozen=True)
class Own(Ppo):
    """An algorithm of a user's own."""

    term: Any = None
    total: float = 1.0
    per: str = TOKENS

    def totals(self, targets: TokenTargets) -> Totals:
        return {"mine": self.total}

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        return LossSums({"bonus": Sum(self.term(batch), self.per)})


def diverging(batch: TokenBatch) -> torch.Tensor:
    """0, with an infinite gradient."""
    return (batch.logprobs - batch.logprobs.detach()).sqrt().sum()


@pytest.fixture
def own(model: Path, one_rank: None, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Learner]:
    lend(monkeypatch, ALGORITHMS, "own", Own)

    def learner(**settings: Any) -> Learner:
        made = learner_of(model, objective=Objective())
        made.algorithm = Own(**settings)
        return made

    return learner


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        ({"term": lambda batch: batch.logprobs.sum() * math.nan}, "the loss's term bonus is not finite"),
        ({"term": diverging}, "the gradient is not finite, though the loss is"),
        ({"term": lambda batch: batch.logprobs.sum() / 0, "total": math.inf}, "the total mine is not finite"),
    ],
    ids=["a term", "a gradient", "a total"],
)
def test_an_algorithm_of_ones_own_is_named_by_what_of_it_is_not_finite(
    settings: dict[str, Any], cause: str, own: Callable[..., Learner]
) -> None:
    report = own(**settings).step(batch(), 0)
    assert (report.updates, report.skipped, report.not_finite) == (0, 1, cause)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"term": lambda batch: batch.logprobs[None, :3]}, r"has the shape \(1, 3\), expected a scalar"),
        ({"term": lambda batch: batch.logprobs.sum(), "per": "turns"}, "is per turns, which is no total"),
    ],
    ids=["a shape", "a denominator"],
)
def test_a_loss_that_is_no_scalar_or_has_no_denominator_is_a_users_mistake(
    settings: dict[str, Any], said: str, own: Callable[..., Learner]
) -> None:
    with pytest.raises(UserError, match=rf"^bonus by Own\.loss {said}$"):
        own(**settings).step(batch(), 0)


def test_one_update_of_several_is_skipped_and_the_others_are_learnt(model: Path, one_rank: None) -> None:
    learner = learner_of(model, replace(CONFIG, updates_per_batch=2), Objective())
    before = weights_in(learner)
    report = learner.step(poisoned("reinforce", 0), 0)
    assert (report.updates, report.skipped, report.not_finite) == (1, 1, "2 advantages are not finite")
    assert faults.of_step(report, None) == ["1 of 2 updates were skipped: 2 advantages are not finite"]
    after = weights_in(learner)
    assert not same(after, before)
    assert all(tensor.isfinite().all() for tensor in after.values())
