"""The server for `serve run`, `serve deploy` and KubeRay's RayService: applications by import path.

    serve run jobs.serving:app model=runs/demo/model

`coa serve` starts the same application, with tool executors that replicas share; here each replica has its own, since
the process that builds the application may end before it runs.
"""

import functools
import shlex
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from coa.json_object import JsonView


class Arguments(BaseModel):
    """The `args` of the application in a configuration of Ray Serve."""

    model_config = ConfigDict(extra="forbid")

    model: str
    """Model directory, as every node sees it."""
    recipe: str | None = None
    """Name of a recipe, or a YAML file."""
    overrides: list[str] | str = []
    """Overrides as `coa serve` takes them, key=value: a list, or a text with blanks between them."""

    @property
    def words(self) -> tuple[str, ...]:
        return tuple(shlex.split(self.overrides) if isinstance(self.overrides, str) else self.overrides)


def app(arguments: Arguments) -> Any:
    """The server itself, at `/`. Raises UserError for a mistake in the arguments. Host, port, and the number of
    requests that may wait in the proxy come from Ray Serve's own configuration."""
    from cluster.serving.deployment import application
    from coa.config import load
    from jobs.recipe.find import find_recipe
    from jobs.recipe.models import served_model
    from jobs.recipe.schema import Recipe
    from jobs.recipe.worlds import world_of
    from jobs.run.agent_file import as_trained, fill_in_names
    from jobs.stages.serve import check_settings
    from jobs.stages.services import start_tools

    model = Path(arguments.model).absolute()
    recipe = find_recipe(arguments.recipe) if arguments.recipe else None
    config = as_trained(load(Recipe, recipe, arguments.words), model, Path("."), arguments.words)
    check_settings(config.serving)
    served_model(model, config.agent, ())
    world = world_of(config)
    return application(
        str(model),
        config=fill_in_names(config, model, world),
        engine=config.engine,
        agent=config.agent,
        placement=config.placement,
        tools=functools.partial(start_tools, config, world),
        retry=config.executor.retry,
    )


def ready(arguments: JsonView) -> Any:
    """The application that answers `/readyz` while no replica is up, at that route. It takes no arguments."""
    from cluster.serving.deployment import probe

    return probe()
