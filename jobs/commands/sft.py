"""`coa sft`: supervised fine-tuning on demonstrations."""

from coa.errors import UserError
from jobs.commands.command import Demands, Job
from jobs.recipe.checks import check_run
from jobs.recipe.findings import Findings
from jobs.recipe.needs import is_finished, sft_demands
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.run.session import in_session


def check(config: Recipe) -> Findings:
    found = check_run(config, ("sft",))
    if config.distils and not is_finished(config, "distill"):
        raise UserError(f"{config.run_dir}: nothing is distilled there yet: run `coa distill` first")
    return found


def run(config: Recipe, console: Console) -> None:
    from jobs.stages.sft import sft

    async def body(run: RunDir) -> None:
        run.prepare()
        await sft(run)

    in_session(config, console, body, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    return {"sft": sft_demands(config)}


COMMAND = Job(name="sft", check=check, run=run, stages=("sft",), demands=demands)
