"""The learner's loss, by hand."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from coa.learning.algorithms import loss_of, reduced
from coa.learning.algorithms.base import SAMPLED, SEQUENCES, TOKENS, TokenTargets, Totals, token_batch
from coa.learning.algorithms.grpo import Grpo
from coa.learning.losses import LossConfig, Proximal, divergence
from tests.support.tokens import loss_by, targets_of

torch.set_num_threads(1)
CONFIG = LossConfig(clip_low=0.2, clip_high=0.28, correction_cap=2.0, proximal=Proximal.recomputed)


@dataclass(frozen=True)
class Terms:
    loss: Tensor
    clipped: Tensor
    weight_sum: Tensor


def loss(
    logprobs: Tensor | list[float],
    *,
    proximal: list[float] | None = None,
    sampled: list[float] | None = None,
    imitate: list[float] | None = None,
    reinforce: list[float] | None = None,
    count: float = 1.0,
    config: LossConfig = CONFIG,
) -> tuple[Terms, list[float]]:
    """The terms, and the gradient by log-prob. What is left out is zero, and the proximal policy the present one."""
    it = torch.as_tensor(logprobs, dtype=torch.float32).detach().requires_grad_()

    def of(values: list[float] | None) -> Tensor:
        return torch.zeros_like(it) if values is None else torch.tensor(values, dtype=torch.float32)

    base = it.detach() if proximal is None else of(proximal)
    targets = TokenTargets(
        segments=torch.zeros(len(it), dtype=torch.int64),
        samples=1,
        sampled=of(reinforce) != 0,
        imitate=of(imitate),
        reinforce=of(reinforce),
        rollout_logprobs=base if sampled is None else of(sampled),
        ages=of(None),
        reference_logprobs=of(None),
        old_values=of(None),
    )
    batch = token_batch(targets, logprobs=it, proximal_logprobs=base, values=of(None))
    totals: Totals = dict.fromkeys((TOKENS, SAMPLED, SEQUENCES), count)
    sums = loss_of(Grpo(config), batch, totals)
    terms = Terms(
        reduced(sums.terms, totals), sums.metrics["clip_fraction"].total, sums.metrics["correction_weight"].total
    )
    terms.loss.backward()
    assert it.grad is not None
    return terms, it.grad.tolist()


def test_imitation_is_the_weighted_mean_of_minus_logprobs() -> None:
    terms, gradient = loss([-1.0, -3.0], imitate=[1.0, 0.5], count=4)
    assert terms.loss.item() == (1.0 + 1.5) / 4
    assert gradient == [-0.25, -0.125]
    assert (terms.clipped.item(), terms.weight_sum.item()) == (0, 0)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope", "clipped"),
    [
        (1.0, 2.0, 2.0, 2.0, 0),
        (1.2, 2.0, 2.4, 2.4, 0),
        (1.5, 2.0, 2.56, 0.0, 1),  # better and already likelier: no more
        (0.5, 2.0, 1.0, 1.0, 0),  # better but less likely: all the way back
        (1.0, -2.0, -2.0, -2.0, 0),
        (0.9, -2.0, -1.8, -1.8, 0),
        (0.5, -2.0, -1.6, 0.0, 1),  # worse and already less likely: no more
        (1.5, -2.0, -3.0, -3.0, 0),
    ],
)
def test_a_step_is_clipped_only_where_it_goes_further_the_way_it_pays(
    ratio: float, advantage: float, gain: float, slope: float, clipped: int
) -> None:
    terms, [gradient] = loss([math.log(ratio) - 1], proximal=[-1.0], reinforce=[advantage])
    assert terms.loss.item() == pytest.approx(-gain, rel=1e-6)
    assert gradient == pytest.approx(-slope, rel=1e-6)
    assert terms.clipped.item() == clipped


@pytest.mark.parametrize(
    ("ratio", "advantage", "gain", "slope", "clipped"),
    [
        (2.5, -2.0, -5.0, -5.0, 0),
        (4.0, -2.0, -6.0, 0.0, 1),  # worse and far likelier: counts as three times as likely, and pulls no more
        (4.0, 2.0, 2.56, 0.0, 1),
        (0.5, -2.0, -1.6, 0.0, 1),
    ],
)
def test_a_second_clip_bounds_what_one_bad_token_may_weigh(
    ratio: float, advantage: float, gain: float, slope: float, clipped: int
) -> None:
    config = LossConfig(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
    terms, [gradient] = loss([math.log(ratio) - 1], proximal=[-1.0], reinforce=[advantage], config=config)
    assert terms.loss.item() == pytest.approx(-gain, rel=1e-6)
    assert gradient == pytest.approx(-slope, rel=1e-6)
    assert terms.clipped.item() == clipped


@pytest.mark.parametrize(("gap", "weight"), [(0.0, 1.0), (math.log(1.5), 1.5), (math.log(0.25), 0.25), (3.0, 2.0)])
def test_a_token_counts_as_much_as_the_proximal_policy_finds_it_likely(gap: float, weight: float) -> None:
    terms, [gradient] = loss([-1.0], sampled=[-1.0 - gap], reinforce=[2.0])
    assert terms.loss.item() == pytest.approx(-2 * weight, rel=1e-6)
    assert gradient == pytest.approx(-2 * weight, rel=1e-6)
    assert terms.weight_sum.item() == pytest.approx(weight, rel=1e-6)


@pytest.mark.parametrize(("gap", "advantage"), [(math.log(1.3), 1.0), (math.log(0.75), -1.0)])
def test_by_default_what_an_old_sample_asked_for_and_has_is_asked_for_no_further(gap: float, advantage: float) -> None:
    """One update a batch: around the policy that the batch finds, each of several old batches would push again."""
    for config, moved in ((LossConfig(), 0.0), (CONFIG, -advantage * math.exp(gap))):
        _, [gradient] = loss([-1.0], sampled=[-1.0 - gap], reinforce=[advantage], config=config)
        assert gradient == pytest.approx(moved, rel=1e-6)


def test_a_token_of_neither_kind_has_no_gradient_and_counts_nowhere() -> None:
    # A demonstration's token has a log-prob of zero at sampling, which means nothing.
    terms, gradient = loss([-80.0, -1.0], proximal=[-3.0, -1.0], sampled=[0.0, -1.0], reinforce=[0.0, 1.0])
    assert gradient == [0.0, -1.0]
    assert (terms.loss.item(), terms.weight_sum.item(), terms.clipped.item()) == (-1.0, 1.0, 0)


def test_both_kinds_add_up() -> None:
    terms, gradient = loss([-2.0, -1.0], imitate=[1.0, 0.0], reinforce=[0.0, 3.0], count=2)
    assert terms.loss.item() == (2.0 - 3.0) / 2
    assert gradient == [-0.5, -1.5]


@pytest.mark.parametrize("advantage", [5.0, -5.0, 0.0])
@pytest.mark.parametrize("now", [0.0, -1e4])
@pytest.mark.parametrize("before", [0.0, -1e4])
@pytest.mark.parametrize("sampled", [0.0, -1e4, -math.inf])
def test_extreme_values_leave_loss_and_gradient_finite(
    now: float, before: float, sampled: float, advantage: float
) -> None:
    terms, [gradient] = loss([now], proximal=[before], sampled=[sampled], imitate=[1.0], reinforce=[advantage])
    assert math.isfinite(terms.loss.item())
    assert math.isfinite(gradient)


def test_micro_batches_add_up_to_the_batch() -> None:
    draw = torch.Generator().manual_seed(0)
    now, proximal, sampled = (-3 * torch.rand(10, generator=draw) for _ in range(3))
    imitate = torch.tensor([1.0, 0, 0.5, 0, 0, 1, 0, 0, 0, 0]).tolist()
    reinforce = torch.tensor([0.0, 1, 0, -1, 2, 0, 0, -0.5, 1, -2]).tolist()

    def part(of: slice) -> tuple[float, list[float]]:
        terms, gradient = loss(
            now[of],
            proximal=proximal[of].tolist(),
            sampled=sampled[of].tolist(),
            imitate=imitate[of],
            reinforce=reinforce[of],
            count=10,
        )
        return terms.loss.item(), gradient

    whole, parts = part(slice(0, 10)), [part(slice(0, 3)), part(slice(3, 4)), part(slice(4, 10))]
    assert whole[1] == [one for _, gradient in parts for one in gradient]
    assert whole[0] == pytest.approx(sum(value for value, _ in parts), abs=1e-6)


def test_a_divergence_from_the_reference_is_never_negative_and_pulls_back() -> None:
    logprobs, reference = torch.tensor([-1.0, -2.0, -3.0]).requires_grad_(), torch.tensor([-1.0, -1.5, -4.0])
    found = divergence(logprobs, reference)
    expected = [0.0, math.exp(0.5) - 1.5, math.exp(-1.0)]
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    found.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([0.0, 1 - math.exp(0.5), 1 - math.exp(-1.0)], abs=1e-6)


def test_a_weight_for_the_reference_adds_its_divergence_to_the_loss() -> None:
    targets = targets_of([0, 0], reference=[-1.5, -1.0], rollout=[-1.0, -1.0])
    loss, gradient, _, sums = loss_by(Grpo(kl_weight=0.5), targets, [-1.0, -1.0])
    assert loss == pytest.approx(0.5 * (math.exp(-0.5) - 0.5) / 2)
    assert gradient == pytest.approx([0.5 * (1 - math.exp(-0.5)) / 2, 0])
    assert sums.metrics["kl_reference"].total.item() == pytest.approx(math.exp(-0.5) - 0.5)
