"""`coa distill`: turns multi-agent transcripts into demonstrations."""

from coa.errors import UserError
from jobs.commands.command import Demands, Job, retry_failed
from jobs.recipe.checks import check_run
from jobs.recipe.findings import Findings
from jobs.recipe.needs import distill_demands
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.run.session import in_session


def check(config: Recipe) -> Findings:
    found = check_run(config, ("distill",))
    if config.sft.skipped:
        raise UserError("sft.steps is 0, so there is nothing to distil for")
    if config.sft.data:
        raise UserError("sft.data is set, so there is nothing to distil: set sft.data=[] to run the teacher team")
    return found


def run(config: Recipe, console: Console) -> None:
    from jobs.stages.distill import distill
    from jobs.stages.services import tool_client

    async def body(run: RunDir) -> None:
        run.prepare()
        async with tool_client(run) as tools:
            await distill(run, tools)

    in_session(config, console, body, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    return {"distill": distill_demands(config)}


COMMAND = Job(
    name="distill",
    check=check,
    run=run,
    arguments=retry_failed,
    stages=("distill",),
    demands=demands,
)
