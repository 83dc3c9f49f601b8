"""`coa select`: chooses the tasks that RL can learn from."""

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from cluster.resources import engine_demands
from coa.errors import UserError
from coa.tasks.loading import source
from coa.tasks.remarks import remarks_on
from jobs.commands.command import TASKS_HELP, Demands, Job, model_arguments
from jobs.recipe.checks import check_attempts
from jobs.recipe.findings import Findings
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import caution_about_agent
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.run.session import in_session


def arguments(parser: ArgumentParser) -> None:
    model_arguments(parser, "runs/select")
    parser.add_argument(
        "--mode",
        required=True,
        choices=("direct", "tuned"),
        help="direct: a base model without tools; drops tasks that it knows. "
        "tuned: a fine-tuned model with its tools; drops tasks that it always solves",
    )


def check(
    config: Recipe,
    *,
    model: Path,
    tasks: str,
    mode: str,
    rows: int | None,
    out: Path,
    overrides: Sequence[str] = (),
) -> Findings:
    from jobs.stages.select import TASKS, settings_of, work_of

    path = source(tasks).path
    if path is not None and path.resolve() == (out / TASKS).resolve():
        raise UserError(f"{tasks}: the kept tasks would overwrite this file; choose another --out")
    work = work_of(config, model=model, tasks=tasks, mode=mode, rows=rows)
    if not work.to_attempt():
        raise UserError(f"{tasks}: every task is in selection.sft={config.selection.sft}")
    return check_attempts(model, work.to_attempt(), settings_of(config, work, out, overrides))


def run(
    config: Recipe,
    console: Console,
    *,
    model: Path,
    tasks: str,
    mode: str,
    rows: int | None,
    out: Path,
    overrides: Sequence[str] = (),
) -> None:
    from jobs.stages.engines import engine_pool
    from jobs.stages.select import select_with, settings_of, work_of
    from jobs.stages.services import tool_client

    work = work_of(config, model=model, tasks=tasks, mode=mode, rows=rows)
    for remark in remarks_on(tasks, work.tasks):
        console.say(remark)

    async def body(run: RunDir) -> None:
        if caution := caution_about_agent(config, model, overrides):
            console.say(caution)
        profiles = {task.profile for task in work.to_attempt()}
        async with tool_client(run, profiles) as tools, engine_pool(run, model.resolve(), tools) as pool:
            await select_with(pool, work, run)

    in_session(settings_of(config, work, out, overrides), console, body, demands=demands(config).values(), model=model)


def demands(config: Recipe) -> Demands:
    return {"select": engine_demands(config.placement)}


COMMAND = Job(
    name="select",
    check=check,
    run=run,
    arguments=arguments,
    demands=demands,
    of_model=True,
    epilog=TASKS_HELP,
)
