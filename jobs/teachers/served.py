"""Models of teachers that are served in the cluster: each is started, and started again when its server ends.

ModelServer (an actor, which ends with its server; Ray starts it again) -- url --> keep_served -- url --> TeacherModel
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ray.exceptions import RayError, RayTaskError

from actors.handles import Handle
from actors.teachers.model_server import start_model_server
from cluster.resources import Role
from coa.errors import ModelServerDown
from coa.llm.client import EndpointConfig
from jobs.recipe.schema import Recipe, TeacherModelConfig

LOOK_EVERY_S = 5.0
"""Seconds between two looks at whether a server is up."""
STOP_S = 30.0
"""Seconds that a server may take to stop at the end of a stage; its actor may be waiting for a node."""


async def serve(config: Recipe, model: TeacherModelConfig) -> tuple[EndpointConfig, Handle | None]:
    """The endpoint of a model, and the handle of its server; None if it is served elsewhere. Raises ModelServerDown if
    the first start fails."""
    if not model.serve.model:
        return model.endpoint, None
    server = start_model_server(model.serve, **config.placement.on(Role.model))
    url = await server.start.remote()
    return replace(model.endpoint, url=url, name=model.name), server


async def keep_served(name: str, server: Handle, model: Handle, say: Callable[[str], None]) -> None:
    """Starts the server again whenever it has ended, and tells the TeacherModel its URL, without end."""
    down = False
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        try:
            url = await server.url.remote() or await server.start.remote()
            # Told at each look, since the model's actor may have been restarted with the first URL.
            await model.move.remote(url)
        except (RayError, ModelServerDown) as error:
            if isinstance(error, RayTaskError) and not isinstance(error, ModelServerDown):
                raise
            if not down:
                say(f"{name}: its server is down, and is started again")
            down = True
            continue
        if down:
            say(f"{name}: its server is up again")
        down = False
