"""Every algorithm, with every correction, is what its paper's formula says: loss and gradient of random ragged batches,
against NumPy in float64."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coa.learning.algorithms import ALGORITHMS, loss_of, make, reduced
from coa.learning.algorithms.base import Algorithm, TokenBatch, TokenTargets, standard_totals
from coa.learning.algorithms.policy_gradient import moments, whitened
from coa.learning.losses import Level, LossConfig, Proximal
from tests.support.numpy_losses import Array, Episode, Formula, parts, slopes

torch.set_num_threads(1)
OWN: dict[str, dict[str, Any]] = {
    "dr_grpo": {"length": 9.0},
    "ppo": {"whiten": True, "gamma": 0.95, "gae_lambda": 0.8, "value_weight": 0.3, "value_clip": 0.2},
    "gspo": {"clip_low": 0.05, "clip_high": 0.08},
    "cispo": {"ratio_low": 0.7, "ratio_high": 1.2},
}
KLS = ((0.0, "loss", "k3"), (0.3, "loss", "k2"), (0.2, "reward", "k1"), (0.3, "loss", "k3"), (0.2, "reward", "k3"))
PROXIMAL, LEVELS = [one.name for one in Proximal], [one.name for one in Level]


def formula(name: str, case: int) -> Formula:
    """Nine cases have each pair of proximal policy, correction and rejection once; grpo has nine for each mean."""
    own = dict(OWN.get(name, {}))
    if name == "reinforce_pp":
        own["baseline"] = bool(case % 2)
    if name == "grpo" and case >= PAIRS:
        own["mean"] = "sequences"
    clips = {"gspo": (0.05, 0.08), "cispo": (0.7, 1.2)}
    return Formula(
        name=name,
        clip=clips.get(name, (0.2, 0.28)),
        dual_clip=1.3 if case % 2 and name not in clips else None,
        proximal=PROXIMAL[case % 3],
        correction=LEVELS[case % PAIRS // 3],
        cap=1.3,
        reject=LEVELS[(case + case % PAIRS // 3) % 3],
        bounds=(0.8, 1.25),
        kl=KLS[case % len(KLS)],
        own=own,
    )


def algorithm_of(one: Formula) -> Algorithm:
    """As a recipe has it made."""
    clips = {} if one.name in ("gspo", "cispo") else {"clip_low": one.clip[0], "clip_high": one.clip[1]}
    config = LossConfig(
        **clips,
        dual_clip=one.dual_clip,
        proximal=Proximal[one.proximal],
        correction=Level[one.correction],
        correction_cap=one.cap,
        reject=Level[one.reject],
        reject_below=one.bounds[0],
        reject_above=one.bounds[1],
    )
    weight, where, estimator = one.kl
    return make(one.name, config, {**one.own, "kl_weight": weight, "kl_in": where, "kl_estimator": estimator})


@dataclass(frozen=True)
class Drawn:
    batch: list[Episode]
    logprobs: list[Array]
    values: list[Array]


def draw(seed: int) -> Drawn:
    """Three groups, of 4, 2 and 3 episodes of 1 to 6 tokens, one without any; a demonstration between them."""
    rng = np.random.default_rng(seed)
    batch: list[Episode] = []
    logprobs: list[Array] = []
    for group, size in ((0, 4), (1, 2), (-1, 1), (2, 3)):
        rewards = rng.permutation(size) / size
        for number in range(size):
            n = 0 if (group, number) == (2, 1) else int(rng.integers(1, 7))
            now = -1.5 + 0.5 * rng.normal(size=n)
            proximal = now + 0.2 * rng.normal(size=n)
            rollout = proximal + 0.25 * rng.normal(size=n)
            batch.append(
                Episode(
                    group=group,
                    reward=float(rewards[number]),
                    proximal=proximal,
                    rollout=rollout,
                    reference=rollout + 0.3 * rng.normal(size=n),
                    ages=rng.integers(0, 5, n).astype(np.float64),
                    old_values=0.4 * rng.normal(size=n),
                    imitate=rng.random(n) if group < 0 else np.zeros(n),
                )
            )
            logprobs.append(now)
    return Drawn(batch, logprobs, [one.old_values + 0.3 * rng.normal(size=len(one.ages)) for one in batch])


def targets_of(drawn: Drawn, part: Sequence[int], reinforce: Sequence[float]) -> TokenTargets:
    """A micro-batch of these samples, in float64."""
    sizes = [len(drawn.logprobs[i]) for i in part]

    def flat(arrays: Sequence[Array]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate([arrays[i] for i in part]))

    def each(values: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor([values[i] for i, n in zip(part, sizes, strict=True) for _ in range(n)], dtype=dtype)

    return TokenTargets(
        segments=torch.tensor([s for s, n in enumerate(sizes) for _ in range(n)], dtype=torch.int64),
        samples=len(part),
        sampled=each([one.group >= 0 for one in drawn.batch], torch.bool),
        imitate=flat([one.imitate for one in drawn.batch]),
        reinforce=each(reinforce, torch.float64),
        rollout_logprobs=flat([one.rollout for one in drawn.batch]),
        ages=flat([one.ages for one in drawn.batch]).long(),
        reference_logprobs=flat([one.reference for one in drawn.batch]),
        old_values=flat([one.old_values for one in drawn.batch]),
        bounds=rewards_of(drawn),
    )


def rewards_of(drawn: Drawn) -> tuple[float, float]:
    """Least and largest of episodes with a token, as a learner knows them of algorithms whose advantages they are."""
    found = [one.reward for one in drawn.batch if one.group >= 0 and len(one.ages)]
    return min(found), max(found)


def credits_of(algorithm: Algorithm, drawn: Drawn) -> list[float]:
    """What the driver's credit gives each sample, group by group."""
    found = [0.0] * len(drawn.batch)
    for group in {one.group for one in drawn.batch if one.group >= 0}:
        # An episode without a token is none to learn from, but still one of its group: leave it out of both sides.
        members = [i for i, one in enumerate(drawn.batch) if one.group == group and len(one.ages)]
        rewarded: Any = [SimpleNamespace(grade=drawn.batch[i].reward, reward=drawn.batch[i].reward) for i in members]
        for i, advantage in zip(members, algorithm.advantages(rewarded), strict=True):
            found[i] = float(advantage)
    return found


def by_product(
    algorithm: Algorithm, drawn: Drawn, micro_batches: Sequence[Sequence[int]]
) -> tuple[float, Array, Array]:
    """Loss, and its gradients by log-prob and by value, over micro-batches as a learner has them."""
    reinforce = credits_of(algorithm, drawn)
    targets = [targets_of(drawn, part, reinforce) for part in micro_batches]
    totals: dict[str, float] = {}
    for one in targets:
        for name, value in {**standard_totals(one), **algorithm.totals(one)}.items():
            totals[name] = totals.get(name, 0.0) + value
    found, gradients, by_value = 0.0, [], []
    for one, part in zip(targets, micro_batches, strict=True):
        now = torch.from_numpy(np.concatenate([drawn.logprobs[i] for i in part])).requires_grad_()
        values = torch.from_numpy(np.concatenate([drawn.values[i] for i in part])).requires_grad_()
        before = torch.from_numpy(np.concatenate([drawn.batch[i].proximal for i in part]))
        known = {name: getattr(one, name) for name in TokenTargets.__slots__}
        batch = TokenBatch(**known, logprobs=now, proximal_logprobs=before, values=values)
        sum_ = reduced(loss_of(algorithm, batch, totals).terms, totals) + 0.0 * (now.sum() + values.sum())
        sum_.backward()
        assert now.grad is not None
        assert values.grad is not None
        found += sum_.item()
        gradients.append(now.grad.numpy())
        by_value.append(values.grad.numpy())
    return found, np.concatenate(gradients), np.concatenate(by_value)


PAIRS = 9
CASES = {
    name: range({"on_policy": 1, "grpo": 2 * PAIRS}.get(name, PAIRS)) for name in ALGORITHMS if name != "imitation"
}
"""With weights from a group, on_policy is grpo."""


@pytest.mark.parametrize(("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases])
def test_loss_and_gradient_are_those_of_the_formula(name: str, case: int) -> None:
    """In three micro-batches, whose boundaries know nothing of groups."""
    drawn = draw(seed=case)
    asked = replace(formula(name, case), rewards=rewards_of(drawn))
    micro_batches = [range(3), range(3, 7), range(7, len(drawn.batch))]
    found, gradient, by_value = by_product(algorithm_of(asked), drawn, micro_batches)
    expected = list(zip(parts(asked, drawn.batch, drawn.logprobs), drawn.logprobs, drawn.values, strict=True))
    assert found == pytest.approx(sum(part(now, values) for part, now, values in expected), abs=1e-6)
    theirs = [slopes(lambda at, part=part, v=values: part(at, v), now) for part, now, values in expected]
    assert gradient == pytest.approx(np.concatenate(theirs), abs=1e-6)
    assert np.abs(gradient).max() > 0.001
    if name == "ppo":
        theirs = [slopes(lambda at, part=part, n=now: part(n, at), values) for part, now, values in expected]
        assert by_value == pytest.approx(np.concatenate(theirs), abs=1e-6)
        assert np.abs(by_value).max() > 0.01


@pytest.mark.parametrize("reward", [1.1, 0.1, -0.2, 0.0, 1.0])
@pytest.mark.parametrize("dealt", [1, 7])
def test_equal_rewards_teach_nothing_whatever_rounding_makes_of_them(reward: float, dealt: int) -> None:
    micro = [torch.full((333,), reward) for _ in range(dealt)]
    found = [moments(one) for one in micro]
    totals = {name: sum(one[name] for one in found) for name in found[0]}
    assert float(whitened(micro[0], totals).abs().max()) < 1e-3
