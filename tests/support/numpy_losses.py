"""Losses, credits and corrections in NumPy float64, written from the papers' formulas, an episode at a time.

Nothing here is the product's. What is held fixed while a gradient is taken, sg(.) in the papers, is computed from
`fixed`, the log-probs at which it is taken.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Episode:
    """Of a policy's tokens, [n] each; of a demonstration `imitate` alone is read."""

    group: int
    """Below 0: a demonstration."""
    reward: float
    proximal: Array
    rollout: Array
    reference: Array
    ages: Array
    old_values: Array
    imitate: Array


@dataclass(frozen=True, kw_only=True)
class Formula:
    """An algorithm by its name, with everything that a recipe may set."""

    name: str
    clip: tuple[float, float] = (0.2, 0.28)
    """Of a ratio: below and above 1; of cispo the least and the largest weight."""
    dual_clip: float | None = None
    proximal: str = "recomputed"
    correction: str = "tokens"
    cap: float = 2.0
    reject: str = "none"
    bounds: tuple[float, float] = (0.5, 2.0)
    kl: tuple[float, str, str] = (0.0, "loss", "k3")
    """Weight, where, and the estimator."""
    rewards: tuple[float, float] = (-np.inf, np.inf)
    """Least and largest of the batch."""
    own: Mapping[str, Any]
    """The algorithm's other settings."""


def kl(logprobs: Array, reference: Array, estimator: str) -> Array:
    """http://joschu.net/blog/kl-approx.html: x ~ q, r = p / q, of KL[q, p]."""
    r = np.exp(reference - logprobs)
    return {"k1": -np.log(r), "k2": np.log(r) ** 2 / 2, "k3": (r - 1) - np.log(r)}[estimator]


def gae(rewards: Array, values: Array, gamma: float, lam: float) -> Array:
    """arXiv 1506.02438, equation 16, as the sum that it is: sum over l of (gamma lambda)^l delta[t + l]."""
    delta = rewards + gamma * np.append(values[1:], 0.0) - values
    n = len(delta)
    return np.array([sum((gamma * lam) ** (s - t) * delta[s] for s in range(t, n)) for t in range(n)])


def advantages(formula: Formula, episodes: Sequence[Episode]) -> list[Array]:
    """Of each token of each episode."""
    weight, where, estimator = formula.kl
    beta = weight if where == "reward" else 0.0
    found: list[Array] = []
    for one in episodes:
        group = [other.reward for other in episodes if other.group == one.group]
        penalty = beta * kl(one.rollout, one.reference, estimator)
        mean, n = sum(group) / len(group), len(group)
        match formula.name:
            case "grpo" | "on_policy" | "cispo" | "gspo":  # 2402.03300, the outcome's reward
                score = (one.reward - mean) / (np.std(group, ddof=1) + 1e-6)
            case "dr_grpo":  # 2503.20783: no deviation
                score = one.reward - mean
            case "rloo":  # 2402.14740: the others' mean
                score = one.reward - (sum(group) - one.reward) / (n - 1)
            case "reinforce_pp":  # 2501.03262
                score = one.reward - mean if formula.own.get("baseline") else one.reward
            case _:  # PPO: at the last token, and from there by GAE
                rewards = -penalty
                rewards[-1] += one.reward
                found.append(gae(rewards, possible(formula, one), formula.own["gamma"], formula.own["gae_lambda"]))
                continue
        found.append(np.array([score - penalty[t:].sum() for t in range(len(penalty))]))
    if formula.name == "reinforce_pp" or formula.own.get("whiten"):
        every = np.concatenate(found)
        found = [(one - every.mean()) / every.std() for one in found]
    return found


def possible(formula: Formula, one: Episode) -> Array:
    """Values that returns can have: discounted rewards are nearer to 0, and penalties have no bound."""
    low, high = formula.rewards
    if formula.kl[0] and formula.kl[1] == "reward":
        return one.old_values
    return np.clip(one.old_values, *((min(low, 0.0), max(high, 0.0)) if formula.own["gamma"] < 1 else (low, high)))


def proximal(formula: Formula, one: Episode, now: Array) -> Array:
    """AReaL: v_theta is the version that is trained, v_behave that of the token, and the proximal policy is the one
    before v_theta, log-linearly between the two."""
    if formula.proximal == "recomputed":
        return one.proximal
    alpha = np.array([max(d - 1, 0) / d if d > 0 else 0.0 for d in one.ages])
    return one.rollout + (alpha * (now - one.rollout) if formula.proximal == "interpolated" else 0.0)


def weights(formula: Formula, ratio: Array, mismatch: Array) -> Array:
    """Of tokens that the proximal policy finds `ratio` times as likely as the sampling one, and the policy before the
    batch `mismatch` times: what IcePop (ringtech.notion.site/icepop) compares."""
    low, high = formula.bounds
    product, geometric = ratio.prod(), mismatch.prod() ** (1 / len(ratio))
    whole = np.ones_like(ratio)
    weight = {"none": whole, "tokens": ratio, "sequences": product * whole}[formula.correction]
    judged = {"none": whole, "tokens": mismatch, "sequences": geometric * whole}[formula.reject]
    return np.minimum(weight, formula.cap) * ((low <= judged) & (judged <= high))


def surrogate(formula: Formula, ratio: Array, advantage: Array) -> Array:
    """PPO (1707.06347, equation 7) with two clips (2503.14476), and dual-clip (1912.09729, equation 5)."""
    low, high = formula.clip
    gain = np.minimum(ratio * advantage, np.clip(ratio, 1 - low, 1 + high) * advantage)
    if formula.dual_clip is not None:
        gain = np.where(advantage < 0, np.maximum(gain, formula.dual_clip * advantage), gain)
    return gain


def parts(formula: Formula, batch: Sequence[Episode], fixed: Sequence[Array]) -> list[Callable[[Array, Array], float]]:
    """Of episodes and demonstrations together, each one's part of the loss, as a function of its log-probs and values:
    given the credit, which depends on all of them, the loss is their sum."""
    tokens = sum(len(one.imitate) for one in batch)
    here = [i for i, one in enumerate(batch) if one.group >= 0 and len(one.imitate)]
    credit = dict(zip(here, advantages(formula, [batch[i] for i in here]), strict=True))

    def part(i: int) -> Callable[[Array, Array], float]:
        one = batch[i]
        if i not in credit:
            return lambda now, values: -float((one.imitate * now).sum()) / tokens
        base = proximal(formula, one, fixed[i])
        step = step_of(formula, one, credit[i], base, fixed[i], tokens=tokens, sequences=len(here))
        weight, where, estimator = formula.kl
        over = {"rloo": len(here), "dr_grpo": len(here) * formula.own.get("length", 0.0)}.get(formula.name, tokens)
        if formula.own.get("mean") == "sequences":
            over = len(here) * len(one.imitate)
        beta = weight / over if where == "loss" else 0.0
        errors = value_errors(formula, one) if formula.name == "ppo" else lambda values: 0.0
        return lambda now, values: float(
            step(now) + beta * kl(now, one.reference, estimator).sum() + errors(values) / tokens
        )

    return [part(i) for i in range(len(batch))]


def step_of(
    formula: Formula, one: Episode, advantage: Array, base: Array, fixed: Array, *, tokens: int, sequences: int
) -> Callable[[Array], float]:
    """An episode's part of the policy's loss."""
    found = one.proximal - one.rollout
    weight = weights(formula, np.exp(base - one.rollout), np.exp(found))
    match formula.name:
        case "gspo":  # 2507.18071, equations 5 and 7
            whole = weights(formula, np.exp([(base - one.rollout).mean()]), np.exp([found.mean()]))
            # One action: its advantage is that of its first token, from which all penalties are to go.
            first = advantage[:1]
            return lambda now: -(whole * surrogate(formula, np.exp([(now - base).mean()]), first)).sum() / sequences
        case "cispo":  # 2506.13585, equations 4 and 5
            clipped = np.clip(np.exp(fixed - base), *formula.clip)
            return lambda now: -(weight * clipped * advantage * now).sum() / tokens
        case "dr_grpo":
            over = sequences * formula.own["length"]
        case "rloo":
            over = sequences
        case "grpo" if formula.own.get("mean") == "sequences":  # 2402.03300, equation 3
            over = sequences * len(one.imitate)
        case _:
            over = tokens
    return lambda now: -(weight * surrogate(formula, np.exp(now - base), advantage)).sum() / over


def value_errors(formula: Formula, one: Episode) -> Callable[[Array], float]:
    """The clipped loss of PPO's first implementation, to the returns that GAE estimates."""
    [raw] = advantages(replace(formula, own={**formula.own, "whiten": False}), [one])
    clip, weight, target = formula.own["value_clip"], formula.own["value_weight"], raw + possible(formula, one)

    def at(now: Array) -> float:
        near = np.clip(now, one.old_values - clip, one.old_values + clip)
        return weight * float((np.maximum((now - target) ** 2, (near - target) ** 2) / 2).sum())

    return at


def slopes(loss_at: Callable[[Array], float], point: Array, step: float = 1e-5) -> Array:
    """The gradient by central differences."""
    found = np.zeros_like(point)
    for index in range(len(point)):
        moved = np.zeros_like(point)
        moved[index] = step
        found[index] = (loss_at(point + moved) - loss_at(point - moved)) / (2 * step)
    return found
