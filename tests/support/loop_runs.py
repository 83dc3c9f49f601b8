"""Short runs of reinforcement on real engines and learners, in this process, from an untrained policy."""

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.messages import EpisodeId, EpisodeOrder
from cluster.pool import EnginePool
from coa.config import load
from coa.learning.window import WindowConfig
from coa.types import Scored, Tokens
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from tests.support.tiny import AGENT, make_model

GROUPS = 4
"""Of a batch."""


def make_run(folder: Path, *overrides: str, max_staleness: int, steps: int = 3) -> RunDir:
    """Rewards differ by length alone: an untrained model's groups say something too."""
    settings = [
        f"run_dir={folder}",
        f"rl.steps={steps}",
        "rl.group=3",
        "rl.algorithm_settings.spread=reward",
        *overrides,
    ]
    config = load(Recipe, find_recipe("tiny"), settings)
    rl = replace(
        config.rl,
        window=WindowConfig(max_staleness=max_staleness, groups_per_batch=GROUPS, max_refills=1),
        reward=replace(config.rl.reward, overlong_buffer=1.0),
        checkpoint_every=100,
    )
    run = RunDir(replace(config, agent=AGENT, rl=rl), Console(io.StringIO(), io.StringIO()))
    run.prepare()
    for model in (run.start_model, run.sft_model):
        make_model(model)
    return run


class Recording:
    """A pool that keeps what was played."""

    def __init__(self, pool: EnginePool) -> None:
        self.pool = pool
        self.played: dict[EpisodeId, Tokens] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    async def play(self, order: EpisodeOrder) -> Scored:
        scored = await self.pool.play(order)
        self.played[order.id] = scored.trajectory.token_ids
        return scored
