"""`coa plan`: shows what would run where on a cluster, what does not fit, and how fast the RL loop would be.

coa plan --recipe web_7b --cluster 2x8xH100
coa plan --recipe tiny --run runs/demo
"""

import os
import sys
from argparse import ArgumentParser
from pathlib import Path

from cluster.resources import present_nodes
from coa.config import load
from coa.planning.clusters import parse_cluster
from jobs.commands.command import Command, local_path, positive
from jobs.commands.plan.places import plan_of
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--recipe", required=True, help="name of a recipe (such as tiny), or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe")
    parser.add_argument(
        "--cluster", help="NODESxGPUSxDEVICE, such as 4x8xH200; without it the cluster of RAY_ADDRESS, or this machine"
    )
    parser.add_argument(
        "--run", type=local_path, help="a run directory, whose recorded lengths, latencies and speeds are used"
    )
    parser.add_argument("--up-to", type=positive, metavar="GPUS", help="also plan larger clusters, up to so many GPUs")


def run(*, recipe: str, overrides: list[str], cluster: str | None, run: Path | None, up_to: int | None) -> int:
    """Prints the plan; returns 1 if something does not fit, or is not known to. Raises UserError."""
    from jobs.commands.plan.speed import speed_of
    from jobs.recipe.forecast import require_recorded

    config = load(Recipe, find_recipe(recipe), tuple(overrides))
    if run is not None:
        require_recorded(run)
    if cluster is not None:
        nodes = parse_cluster(cluster)
    else:
        nodes = present_nodes(config.session.address or os.environ.get("RAY_ADDRESS"))
    console = Console(sys.stdout, sys.stderr)
    plan = plan_of(config, nodes)
    for section in plan.sections:
        console.table(section.title, section.columns, section.rows)
    for mistake in plan.mistakes:
        console.say(f"does not fit: {mistake}")
    for sentence in plan.unknown:
        console.say(sentence)
    console.say("simulating the loop, for a minute or two if a batch has thousands of episodes ...")
    sections, sentences = speed_of(config, nodes, run, up_to)
    for section in sections:
        console.table(section.title, section.columns, section.rows)
    for sentence in sentences:
        console.say(sentence)
    return int(bool(plan.mistakes or plan.unknown))


COMMAND = Command(name="plan", run=run, arguments=arguments)
