"""RL algorithms, one file each, found by name (`rl.algorithm` in a recipe).

    grpo           clipped surrogate per token, advantages within the group (DAPO's by its settings); the default
    dr_grpo        GRPO without dividing by the standard deviation and the length
    rloo           leave-one-out baseline, each sequence as a single action
    reinforce_pp   advantages normalized over the whole batch, without groups
    cispo          clips the importance weight, so that no token loses its gradient
    gspo           ratio and clipping per sequence
    ppo            GAE with a value head on the policy
    on_policy      on-policy distillation from a larger model
    imitation      cross-entropy only

`docs/algorithms.md` says when to use which. An algorithm of your own is a frozen dataclass in one file
(`docs/extending.md`): ALGORITHMS.register("mine", Mine).
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from coa.errors import UserError
from coa.extensions import load_extensions
from coa.json_object import JsonView
from coa.learning.algorithms.base import Algorithm, LossSums, Sum, TokenBatch, Totals
from coa.learning.algorithms.cispo import Cispo
from coa.learning.algorithms.dr_grpo import DrGrpo
from coa.learning.algorithms.grpo import Grpo
from coa.learning.algorithms.gspo import Gspo
from coa.learning.algorithms.imitation import Imitation, imitation
from coa.learning.algorithms.on_policy import OnPolicy
from coa.learning.algorithms.ppo import Ppo
from coa.learning.algorithms.reinforce_pp import ReinforcePp
from coa.learning.algorithms.rloo import Rloo
from coa.learning.losses import LossConfig
from coa.registry import Registry

DEFAULT = "grpo"
SURROGATE = "surrogate"
"""The field of an algorithm that gets the recipe's `rl.learner.loss`."""
ON_POLICY = "on_policy"
IMITATION = "imitation"
BUILT_IN: Mapping[str, type[Algorithm]] = {
    DEFAULT: Grpo,
    "dr_grpo": DrGrpo,
    "rloo": Rloo,
    "reinforce_pp": ReinforcePp,
    "cispo": Cispo,
    "gspo": Gspo,
    "ppo": Ppo,
    ON_POLICY: OnPolicy,
    IMITATION: Imitation,
}
CALLED = {
    "dapo": "grpo with its default clip range, and rl.window.max_refills above 0",
    "reinforce++": "reinforce_pp",
    "reinforce_plus_plus": "reinforce_pp",
}
"""Names of algorithms in other systems, with their names here."""
ALGORITHMS: Registry[type[Algorithm]] = Registry("algorithm", BUILT_IN)


def make(name: str, surrogate: LossConfig | None = None, settings: JsonView | None = None) -> Algorithm:
    """The algorithm of that name; raises UserError for an unknown name or setting."""
    from coa.config import from_plain  # a process that only computes needs no settings

    load_extensions()
    if name not in ALGORITHMS and name in CALLED:
        raise UserError(f"unknown algorithm {name!r}: here it is {CALLED[name]}")
    kind: Any = ALGORITHMS.find(name)
    tree = dict(settings or {})
    if SURROGATE in tree:
        raise UserError(f"rl.algorithm_settings.{SURROGATE} is set by rl.learner.loss")
    if surrogate is not None and SURROGATE in {field.name for field in fields(kind)}:
        tree[SURROGATE] = asdict(surrogate)
    return from_plain(kind, tree, "rl.algorithm_settings")


def loss_of(algorithm: Algorithm, batch: TokenBatch, totals: Totals) -> LossSums:
    """The algorithm's loss plus the imitation loss. Raises UserError for a sum that is no scalar, or whose denominator
    is no total."""
    sums = algorithm.loss(batch, totals)
    for name, one in {**sums.terms, **sums.metrics}.items():
        if (shape := tuple(one.total.shape)) != ():
            raise UserError(f"{name} by {type(algorithm).__name__}.loss has the shape {shape}, expected a scalar")
        if one.per not in totals:
            raise UserError(f"{name} by {type(algorithm).__name__}.loss is per {one.per}, which is no total")
    return LossSums({**sums.terms, "imitation_loss": imitation(batch)}, sums.metrics)


def reduced(sums: Mapping[str, Sum], totals: Totals) -> Any:
    """Divides each sum by its denominator and adds up the quotients: a scalar tensor."""
    return sum(one.total / totals[one.per] for one in sums.values() if totals[one.per])
