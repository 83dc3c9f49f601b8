"""`coa evaluate`: measures a model on a published benchmark or on a user's tasks."""

import re
import sys
from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from cluster.resources import engine_demands
from coa.extensions import load_extensions
from coa.reporting.benchmarks import show
from coa.tasks.published.table import BENCHMARKS
from coa.tasks.remarks import remarks_on
from jobs.commands.command import TASKS_HELP, Demands, Job, local_path, model_arguments, positive
from jobs.evaluation.compared import verdicts_in
from jobs.recipe.checks import check_attempts
from jobs.recipe.findings import Findings
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import as_trained, caution_about_agent
from jobs.run.console import Console, Terminal
from jobs.run.run_dir import RunDir
from jobs.run.session import in_session

TABLE_WIDTH = 180
"""Columns of the table of benchmarks, if stdout is not a terminal."""


class _ListBenchmarks(Action):
    """Prints the published benchmarks that `--tasks NAME` knows, and exits, as `--help` does."""

    def __call__(self, parser: ArgumentParser, *_: object) -> None:
        load_extensions()  # extensions may register more benchmarks
        table = Table(box=box.SIMPLE_HEAD)
        for column in ("benchmark", "rows", "profile", "metric", "attempts", "grader", "data set", "terms"):
            table.add_column(column, justify="right" if column == "rows" else "left", overflow="fold")
        for one in BENCHMARKS.values():
            config = f" ({one.hub.config})" if one.hub.config else ""
            rows, metric = str(one.rows[0]), one.metric_at(one.decoding.samples)
            table.add_row(
                one.name, rows, one.profile, metric, show(one.decoding), one.grader, one.hub.id + config, one.terms
            )
        Terminal(width=None if sys.stdout.isatty() else TABLE_WIDTH, highlight=False, emoji=False).print(table)
        parser.exit()


def arguments(parser: ArgumentParser) -> None:
    model_arguments(parser, None, own_tasks=True)
    parser.add_argument(
        "--benchmarks",
        action=_ListBenchmarks,
        nargs=0,
        default=SUPPRESS,
        help="list the published benchmarks, and exit",
    )
    parser.add_argument(
        "--best-of",
        type=positive,
        metavar="N",
        help="attempt each task N times, and compare pass@1, each way to choose one of the N, and pass@N; "
        "a language model chooses, too, if tools.judge is set",
    )
    parser.add_argument(
        "--against",
        type=local_path,
        metavar="FOLDER",
        help="an earlier evaluation on the same tasks (its --out): reports the difference, with an interval",
    )


def check(
    config: Recipe,
    *,
    model: Path,
    tasks: str | None,
    rows: int | None,
    out: Path,
    best_of: int | None,
    against: Path | None = None,
    overrides: Sequence[str] = (),
) -> Findings:
    from jobs.evaluation.scaling import check_best_of
    from jobs.stages.evaluate import evaluation_plan

    config = settings_of(config, model, out, best_of, overrides)
    plan = evaluation_plan(config, tasks, rows, best_of=best_of is not None)
    if plan.best_of:
        check_best_of(plan.tasks, config)
    if against is not None:
        verdicts_in(against, plan.tasks)
    return check_attempts(model, plan.tasks, config)


def run(
    config: Recipe,
    console: Console,
    *,
    model: Path,
    tasks: str | None,
    rows: int | None,
    out: Path,
    best_of: int | None,
    against: Path | None = None,
    overrides: Sequence[str] = (),
) -> None:
    from jobs.stages.evaluate import evaluate_model, evaluation_plan

    settings = settings_of(config, model, out, best_of, overrides)
    plan = evaluation_plan(settings, tasks, rows, best_of=best_of is not None)
    for remark in remarks_on(plan.spec, plan.tasks):
        console.say(remark)

    async def body(run: RunDir) -> None:
        if caution := caution_about_agent(config, model, overrides):
            console.say(caution)
        await evaluate_model(run, model, plan, against)

    in_session(settings, console, body, demands=demands(config).values(), model=model)


def settings_of(config: Recipe, model: Path, out: Path, best_of: int | None, overrides: Sequence[str]) -> Recipe:
    """The settings of the model's training; --best-of sets the number of samples."""
    config = as_trained(config, model, out, overrides)
    samples = config.evaluation.samples if best_of is None else best_of
    return replace(config, evaluation=replace(config.evaluation, samples=samples))


NOT_ATTEMPTED = ("model", "out", "overrides", "against")
"""Arguments that the folder's digest covers separately, or that do not change what is attempted."""


def own_folder(recipe: str | None, arguments: Mapping[str, Any], overrides: Sequence[str]) -> Path:
    """The default folder of an evaluation: runs/evaluate/demo-math500-3fa91c02. The same command has the same folder,
    and resumes there; any other command has another folder."""
    model = arguments["model"].resolve()
    name = model.parent.name if model.name == "model" else model.name
    asked = {key: str(value) for key, value in sorted(arguments.items()) if key not in NOT_ATTEMPTED}
    digest = sha256(repr((recipe, str(model), asked, sorted(overrides))).encode()).hexdigest()[:8]
    tasks = Path((arguments["tasks"] or "held-out").partition("=")[0]).stem
    return Path("runs/evaluate") / "-".join(re.sub(r"[^\w.]+", "-", part) for part in (name, tasks, digest))


def demands(config: Recipe) -> Demands:
    return {"evaluate": engine_demands(config.placement)}


COMMAND = Job(
    name="evaluate",
    check=check,
    run=run,
    arguments=arguments,
    demands=demands,
    of_model=True,
    folder=own_folder,
    epilog=TASKS_HELP,
)
