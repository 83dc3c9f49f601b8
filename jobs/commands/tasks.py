"""`coa tasks`: makes tasks of a user's own documents."""

import json
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

from cluster.resources import tool_demands
from coa.agent.profiles import PROFILES
from coa.errors import UserError
from coa.reporting.readable import number
from coa.tasks.made.world import NAME, Documents
from coa.teams.kinds import check_team
from coa.teams.teams import EXPERTS
from jobs.commands.command import Demands, Job, local_path, positive
from jobs.recipe.checks import check_models, check_names, check_secrets, check_services
from jobs.recipe.findings import Finding, Findings
from jobs.recipe.needs import models_of_team, roles_of, server_demands, tools_of
from jobs.recipe.resume import check_same
from jobs.recipe.schema import Recipe
from jobs.recipe.services import services_of, unasked
from jobs.recipe.worlds import world_of
from jobs.run.console import Console
from jobs.run.run_dir import CONFIG, RunDir
from jobs.run.session import in_session

SEARCH = "wiki_search"
COUNT = 200


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--corpus",
        dest="said",
        action="append",
        type=lambda text: f"world.corpus={json.dumps(str(local_path(text)))}",
        help="folder of documents: text, Markdown, HTML or PDF",
    )
    parser.add_argument("--count", type=positive, default=COUNT, help="number of tasks to make (%(default)s)")


def recipe_of(config: Recipe) -> Recipe:
    """The recipe as this command takes it: the encyclopedia is the run's own corpus, and there is no policy."""
    from jobs.stages.tasks import CORPUS

    corpus = str(Path(config.run_dir).resolve() / CORPUS)
    wiki = replace(config.tools.wiki, corpus=corpus)
    return replace(config, tools=replace(config.tools, wiki=wiki), model=replace(config.model, path=None))


def check(config: Recipe, *, count: int = COUNT) -> Findings:
    check_secrets(config)
    check_names(config)
    world = world_of(config)
    if not isinstance(world, Documents):
        raise UserError(f"coa tasks needs tasks.world={NAME} and no tasks.path, as in the recipe {NAME}")
    if not world.settings.corpus:
        raise UserError("no documents: name their folder by --corpus")
    files = world.check_corpus()
    profiles = world.profiles()
    if any(name not in PROFILES for name in profiles):
        raise UserError(f"world.profile is {world.settings.profile!r}: known are {', '.join(PROFILES)}")
    if SEARCH not in tools_of(profiles):
        raise UserError(f"world.profile={world.settings.profile} does not call {SEARCH}, which finds the passages")
    check_team(config.team, config.models, profiles)
    for role in roles_of(config):
        if config.team.model_of(role) == EXPERTS:
            raise UserError(f"no model is set for the role {role}: set team.model to one of `models`")
    if not config.team.model:
        raise UserError("no model makes the questions: set team.model to one of `models`")
    check_models(config)
    config = recipe_of(config)
    tools = check_services(config, world.graders(), profiles)
    check_same(Path(config.run_dir) / CONFIG, config)
    return (
        Finding("settings"),
        Finding(f"documents ({number(files)} files)"),
        *unasked(config, services_of(config, models_of_team(config) | {config.team.model}, tools)),
    )


def run(config: Recipe, console: Console, *, count: int = COUNT) -> None:
    from jobs.stages.services import tool_client
    from jobs.stages.tasks import make_tasks, read_corpus, show

    async def body(run: RunDir) -> None:
        passages = await read_corpus(run)
        async with tool_client(run) as tools:
            show(run, await make_tasks(run, tools, passages, count), count)

    in_session(recipe_of(config), console, body, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    models = models_of_team(config) | {config.team.model}
    return {"tasks": [*tool_demands(config.placement), *server_demands(config, models)]}


COMMAND = Job(name="tasks", check=check, run=run, arguments=arguments, stages=("tasks",), demands=demands)
