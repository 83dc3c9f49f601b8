"""`coa train`: all stages, from team runs to a report."""

from argparse import ArgumentParser

from cluster.resources import tool_demands
from jobs.commands.command import Demands, Job, retry_failed
from jobs.recipe.checks import check_run
from jobs.recipe.needs import distill_demands, reinforcement_demands, sft_demands
from jobs.recipe.quick import SMALL
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.run.session import in_session


def run(config: Recipe, console: Console) -> None:
    from jobs.stages.train import conclude, is_finished, train

    finished = RunDir(config, console)
    if is_finished(finished):
        return conclude(finished)
    return in_session(config, console, train, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    return {
        "distill": distill_demands(config) if config.distils else [],
        # Tool executors run from the first stage to the last.
        "sft": [*tool_demands(config.placement), *sft_demands(config)],
        "rl": reinforcement_demands(config),
    }


def arguments(parser: ArgumentParser) -> None:
    retry_failed(parser)
    parser.add_argument(
        "--quick",
        action="store_true",
        help=f"try all stages with little, in RUN_DIR-quick: {' '.join(SMALL)}",
    )


COMMAND = Job(
    name="train",
    check=check_run,
    run=run,
    arguments=arguments,
    stages=("distill", "evaluation-base", "sft", "evaluation-sft", "rl", "evaluation-rl"),
    demands=demands,
)
