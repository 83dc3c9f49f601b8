"""`coa rl`: reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.commands.command import Job

if TYPE_CHECKING:
    from jobs.commands.command import Demands
    from jobs.recipe.findings import Findings
    from jobs.recipe.schema import Recipe
    from jobs.run.console import Console
    from jobs.run.run_dir import RunDir


def check(config: Recipe) -> Findings:
    from coa.errors import UserError
    from jobs.recipe.checks import check_run
    from jobs.recipe.needs import is_finished

    found = check_run(config, ("rl",))
    if not config.sft.skipped and not is_finished(config, "sft"):
        raise UserError(
            f"{config.run_dir}: no fine-tuned model is there yet: run `coa sft` first, or begin at model.path with "
            "sft.steps=0"
        )
    return found


def run(config: Recipe, console: Console) -> None:
    from jobs.run.session import in_session
    from jobs.stages.engines import engine_pool
    from jobs.stages.rl import rl, tell_bottleneck
    from jobs.stages.services import tool_client
    from jobs.stages.sft import sft

    async def body(run: RunDir) -> None:
        run.prepare()
        if config.sft.skipped:
            await sft(run)
        async with tool_client(run) as tools, engine_pool(run, run.sft_model, tools) as pool:
            await rl(run, pool, tools)
        tell_bottleneck(run)

    in_session(config, console, body, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    from jobs.recipe.needs import reinforcement_demands

    return {"rl": reinforcement_demands(config)}


COMMAND = Job(name="rl", help="train by reinforcement learning", check=check, run=run, stages=("rl",), demands=demands)
