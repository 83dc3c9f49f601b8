"""`coa replay`: trains a run's recorded batches again, and compares the results bit for bit.

coa replay runs/demo                    from the first step to the last
coa replay runs/demo --steps 20:25      from the newest kept checkpoint before step 20, to step 25
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path

from jobs.commands.command import Command


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--steps", type=steps, metavar="A:B", default=(None, None), help="first and last step (also A: or :B)"
    )


def steps(text: str) -> tuple[int | None, int | None]:
    if not re.fullmatch(r"\d*:\d*", text):
        raise ArgumentTypeError(f"{text} is no range of steps: write A:B")
    first, _, last = text.partition(":")
    return int(first) if first else None, int(last) if last else None


def run(run_dir: Path, steps: tuple[int | None, int | None]) -> int:
    """Returns 1 at the first difference, and prints its step; raises UserError for a run without recorded batches."""
    from cluster.resources import learner_demands
    from coa.errors import InfrastructureError
    from jobs.run.console import open_console
    from jobs.run.run_dir import RunDir
    from jobs.run.session import in_session
    from jobs.stages.reinforcement.replay import plan_replay, recipe_of, replay

    config = recipe_of(run_dir)
    with open_console(run_dir / "logs" / "replay.log") as console:
        plan = plan_replay(RunDir(config, console), *steps)

        async def body(run: RunDir) -> None:
            await replay(run, plan)

        try:
            plan.check()
            in_session(config, console, body, demands=[learner_demands(config.placement, config.rl.learner.ranks)])
        except InfrastructureError as error:
            console.say(f"{error}")
            return 1
    return 0


COMMAND = Command(
    name="replay", help="train recorded batches of a run again, and compare", run=run, arguments=arguments
)
