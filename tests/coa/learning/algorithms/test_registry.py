"""Algorithms are found by name, take their settings, and leave what is imitated alone."""

from typing import Any

import pytest

from coa.errors import UserError
from coa.learning.advantages import Spread
from coa.learning.algorithms import ALGORITHMS, make
from coa.learning.algorithms.base import Needs
from coa.learning.algorithms.grpo import Grpo
from coa.learning.algorithms.ppo import Ppo
from coa.learning.losses import Level, LossConfig, Proximal
from tests.support.tokens import loss_by, targets_of


def test_an_algorithm_is_made_from_the_recipe() -> None:
    loss = LossConfig(clip_high=0.3)
    assert make("grpo", loss, {"spread": "reward", "kl_weight": 0.1}) == Grpo(loss, kl_weight=0.1, spread=Spread.reward)
    assert make("ppo", loss, {"gae_lambda": 0.9}) == Ppo(surrogate=loss, gae_lambda=0.9)
    assert make("grpo", loss, {"kl_weight": 0.1}).needs == Needs(group=2, reference=True, proximal=False)
    assert make("ppo").needs == Needs(values=True, proximal=False)


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("grop", {}, "unknown algorithm 'grop': known are grpo, dr_grpo, rloo, reinforce_pp, cispo, gspo, ppo"),
        ("ppo", {"lambda": 1}, "rl.algorithm_settings: unknown key lambda"),
        ("grpo", {"kl_weight": 0.1, "kl_estimator": "k1"}, "kl_estimator=k1 has zero expected gradient"),
        ("grpo", {"kl_weight": -0.1}, "kl_weight is -0.1, expected at least 0"),
        ("dr_grpo", {"length": 0}, "length is 0, expected more than 0"),
        ("cispo", {"ratio_high": 0}, "ratio_low and ratio_high are 0 and 0, expected 0 <= low < high"),
        ("ppo", {"gamma": "much"}, "rl.algorithm_settings: gamma is 'much', expected float"),
        ("ppo", {"gae_lambda": 95}, "gae_lambda is 95, expected from 0 to 1"),
        ("ppo", {"value_clip": -0.2}, "value_clip is -0.2, expected at least 0"),
        ("gspo", {"clip_low": -3e-4}, "clip_low is -0.0003, expected at least 0"),
        ("grpo", {"surrogate": {"clip_low": 0.1}}, "rl.algorithm_settings.surrogate is set by rl.learner.loss"),
    ],
)
def test_what_nobody_knows_is_one_line_that_names_it(name: str, settings: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said) as raised:
        make(name, LossConfig(), settings)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["gspo", "cispo"])
def test_gspo_and_cispo_have_clips_of_their_own(name: str) -> None:
    said = f"{name} clips by .* not by rl.learner.loss: set rl.learner.loss.clip_low=0.2 rl.learner.loss.dual_clip=null"
    with pytest.raises(UserError, match=said):
        make(name, LossConfig(clip_low=0.1, dual_clip=3.0))
    make(name, LossConfig(correction_cap=5.0, reject=Level.sequences, proximal=Proximal.interpolated))


def test_a_proximal_pass_and_a_reference_are_asked_for_where_they_are_read() -> None:
    assert not make("ppo", LossConfig(proximal=Proximal.interpolated)).needs.proximal
    assert not make("reinforce_pp", LossConfig(proximal=Proximal.sampler)).needs.proximal
    assert make("reinforce_pp", LossConfig(proximal=Proximal.sampler, reject=Level.tokens)).needs.proximal
    recomputed = LossConfig(proximal=Proximal.recomputed)
    assert make("reinforce_pp", recomputed, {"baseline": True, "kl_weight": 0.1}).needs == Needs(
        group=2, reference=True
    )


def test_each_algorithm_has_a_policy_of_its_own_to_clip_around() -> None:
    def around(name: str, loss: LossConfig | None = None) -> Proximal:
        made: Any = make(name, loss)
        return made.proximal

    assert around("cispo") is Proximal.sampler
    for name in ("grpo", "dr_grpo", "rloo", "reinforce_pp", "gspo", "ppo", "on_policy"):
        assert around(name) is Proximal.interpolated
    assert around("cispo", LossConfig(proximal=Proximal.recomputed)) is Proximal.recomputed


@pytest.mark.parametrize("name", ALGORITHMS)
def test_demonstrations_are_imitated_beside_whatever_is_reinforced(name: str) -> None:
    """Tokens 0 and 1 are of a demonstration, 2 to 4 of an episode; per trained token of either kind."""
    both = targets_of(
        [0, 0, 1, 1, 1],
        sampled=[False, False, True, True, True],
        imitate=[1.0, 0.5, 0, 0, 0],
        reinforce=[0, 0, 2.0, 2.0, 2.0],
        rollout=[0, 0, -1.0, -1.5, -0.5],
    )
    logprobs = [-3.0, -40.0, -1.0, -1.5, -0.5]
    loss, gradient, _, _ = loss_by(make(name), both, logprobs)
    assert gradient[:2] == pytest.approx([-1 / 5, -0.5 / 5])
    alone = targets_of([0, 0, 0], reinforce=[2.0] * 3, rollout=[-1.0, -1.5, -0.5])
    reinforced, its_gradient, _, _ = loss_by(make(name), alone, logprobs[2:])
    per_sequence = ("gspo", "rloo", "dr_grpo")  # whose losses know nothing of other sequences' tokens
    share = 0.0 if name == "imitation" else 1.0 if name in per_sequence else 3 / 5
    assert gradient[2:] == pytest.approx([share * one for one in its_gradient])
    assert loss == pytest.approx((3.0 + 20.0) / 5 + share * reinforced)
    # Nothing sampled: nothing but imitation, and no division by nothing.
    shown = targets_of([0, 0], sampled=[False, False], imitate=[1.0, 0.5])
    assert loss_by(make(name), shown, [-3.0, -40.0])[:2] == (pytest.approx(23.0 / 2), [-0.5, -0.25])
