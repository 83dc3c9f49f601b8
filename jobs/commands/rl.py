"""`coa rl`: reinforcement learning."""

from coa.errors import UserError
from jobs.commands.command import Demands, Job
from jobs.recipe.checks import check_run
from jobs.recipe.findings import Findings
from jobs.recipe.needs import is_finished, reinforcement_demands
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.run.session import in_session


def check(config: Recipe) -> Findings:
    found = check_run(config, ("rl",))
    if not config.sft.skipped and not is_finished(config, "sft"):
        raise UserError(
            f"{config.run_dir}: no fine-tuned model is there yet: run `coa sft` first, or begin at model.path with "
            "sft.steps=0"
        )
    return found


def run(config: Recipe, console: Console) -> None:
    from jobs.stages.engines import engine_pool
    from jobs.stages.rl import early_learners, rl, tell_bottleneck
    from jobs.stages.services import tool_client
    from jobs.stages.sft import sft

    async def body(run: RunDir) -> None:
        run.prepare()
        if config.sft.skipped:
            await sft(run)
        async with (
            tool_client(run) as tools,
            early_learners(run) as learning,
            engine_pool(run, run.sft_model, tools) as pool,
        ):
            await rl(run, pool, tools, learning)
        tell_bottleneck(run)

    in_session(config, console, body, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    return {"rl": reinforcement_demands(config)}


COMMAND = Job(name="rl", check=check, run=run, stages=("rl",), demands=demands)
