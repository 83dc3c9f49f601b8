"""`coa doctor model=PATH`: whether a model can be trained here. It is loaded, and compared with itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from coa.errors import UserError
from jobs.commands.doctor.parts import GIB, Finding, State

if TYPE_CHECKING:
    from actors.learner.config import LoraConfig, ModelConfig
    from coa.agent.episode import AgentConfig
    from coa.pretrained.folder import Pretrained
    from jobs.recipe.schema import Recipe

ROOM = 1.5
"""Times the size of its weights that a model takes while it is loaded and compared."""


def model(path: str, recipe: Recipe | None) -> Iterator[Finding]:
    """recipe: whose settings of the model, of adapters and of the agent count."""
    from coa.pretrained.folder import Use
    from jobs.recipe.models import checked
    from jobs.recipe.schema import Recipe

    settings = recipe or Recipe()
    config = replace(settings.model, path=path)
    try:
        if (found := checked("model", path, Use.train, engine=True)) is None:
            raise UserError(f"model {path} is not on this machine")
    except UserError as error:
        yield Finding(State.MISSING, str(error))
        return
    agent = settings.agent if recipe is not None else _fitting(settings.agent, found)
    lora = settings.rl.learner.lora
    for look in (partial(_describe, found, agent), partial(_copied, found, config, lora), partial(_itself, config)):
        try:
            yield look()
        except UserError as error:
            yield Finding(State.MISSING, str(error))


def _fitting(agent: AgentConfig, found: Pretrained) -> AgentConfig:
    """Limits within the positions of the model, where no recipe says others."""
    from coa.pretrained.positions import positions_of

    longest = min(agent.limits.max_tokens, positions_of(found.text) or agent.limits.max_tokens)
    turn = min(agent.limits.max_turn_tokens, longest // 2)
    return replace(agent, limits=replace(agent.limits, max_tokens=longest, max_turn_tokens=turn))


def _describe(found: Pretrained, agent: AgentConfig) -> Finding:
    from coa.agent.codec import Codec
    from jobs.recipe.models import policy_of

    return Finding(State.OK, policy_of(found, Codec.load(found.folder), "looked at", agent, ()).what)


def _copied(found: Pretrained, config: ModelConfig, lora: LoraConfig) -> Finding:
    from actors.learner.policy import check_trained

    copied = check_trained(found.config, config.attention, lora)
    return Finding(State.OK, "no tiny copy of it can be made" if copied is None else f"a tiny copy of it: {copied}")


def _itself(config: ModelConfig) -> Finding:
    """Compares the model itself, if it fits in memory; raises UserError if it can't be trained."""
    import psutil
    import torch

    from actors.learner.model.load import load_model
    from actors.learner.model.parity import settle
    from actors.learner.policy import PackedPolicy
    from actors.learner.sizes import architecture

    built = architecture(config)
    assert config.path is not None
    assert built is not None
    needed = ROOM * built.parameters * getattr(torch, config.dtype).itemsize
    if needed > (free := psutil.virtual_memory().available):
        held = f"about {needed / GIB:.1f} GiB, and {free / GIB:.1f} GiB are free"
        return Finding(State.WARN, f"the model itself: not compared, since that takes {held}", "model.dtype=bfloat16")
    policy = PackedPolicy(load_model(config.path, config)).eval()
    return Finding(State.OK, f"the model itself, in {config.dtype}: {settle(policy, policy)}")
