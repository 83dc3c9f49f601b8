"""`coa rl`: reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jobs.commands.command import Job

if TYPE_CHECKING:
    from jobs.commands.command import Demands
    from jobs.recipe.schema import Recipe
    from jobs.run.console import Console
    from jobs.run.run_dir import RunDir


def check(config: Recipe) -> None:
    from coa.errors import UserError
    from jobs.recipe.checks import check_run

    check_run(config, ("rl",))
    if not config.sft.skipped and not (Path(config.run_dir) / "checkpoints" / "sft.json").exists():
        raise UserError(
            f"{config.run_dir}: no fine-tuned model is there yet: run `coa sft` first, or begin at model.path with "
            "sft.steps=0"
        )


def run(config: Recipe, console: Console) -> None:
    from jobs.run.session import in_session
    from jobs.stages.engines import engine_pool
    from jobs.stages.rl import rl
    from jobs.stages.services import tool_executors
    from jobs.stages.sft import sft

    async def body(run: RunDir) -> None:
        run.prepare()
        if config.sft.skipped:
            await sft(run)
        async with tool_executors(run) as executors, engine_pool(run, run.sft_model, executors) as pool:
            await rl(run, pool, executors)

    in_session(config, console, body, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    from jobs.recipe.needs import reinforcement_demands

    return {"rl": reinforcement_demands(config)}


COMMAND = Job(name="rl", help="train by reinforcement learning", check=check, run=run, stages=("rl",), demands=demands)
