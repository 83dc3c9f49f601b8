"""Serves a model until the command is interrupted."""

import asyncio
import errno
import secrets
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from cluster.resources import cluster_nodes
from cluster.serving.closing import close, is_ready
from cluster.serving.deployment import application
from cluster.serving.deployment import run as start
from coa.agent.profiles import profile as find_profile
from coa.errors import UserError
from coa.serving.config import ServingConfig
from jobs.run.agent_file import fill_in_names
from jobs.run.run_dir import RunDir
from jobs.stages.services import tool_client

ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""How this machine reaches a server that listens at all of its addresses."""
RESPONSES = "responses.sqlite"
"""File of stored responses in the server's folder."""


def check_settings(settings: ServingConfig) -> None:
    """Raises UserError for mistakes that would otherwise be found only after an engine has started."""
    for name in (settings.profile, *settings.profiles):
        if name:
            find_profile(name)
    if settings.keys and not settings.keys.is_file():
        raise UserError(f"serving.keys: no file {settings.keys}; coa keys --file {settings.keys} add NAME makes it")


def check_serving(settings: ServingConfig) -> None:
    """Raises UserError as `check_settings` does, and for a port that is taken."""
    check_settings(settings)
    with socket.socket() as found:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((settings.host, settings.port))
        except OverflowError as error:
            raise UserError(f"serving.port is {settings.port}, expected 0 to 65535") from error
        except OSError as error:
            why = "is taken" if error.errno == errno.EADDRINUSE else f"can't be used ({error.strerror})"
            raise UserError(f"port {settings.port} of {settings.host} {why}") from error


async def serve_model(run: RunDir, model: Path) -> None:
    """Starts the server, prints its address, and waits until it is interrupted."""
    import ray
    from ray import serve

    config = run.config
    settings = keep_responses(fill_in_names(config, model, run.world), run.folder)
    async with tool_client(run) as tools:
        app = application(
            str(model.resolve()),
            config=settings,
            engine=config.engine,
            agent=config.agent,
            placement=config.placement,
            tools=lambda: tools,
            retry=config.executor.retry,
            node=ray.get_runtime_context().get_node_id() if len(cluster_nodes()) > 1 else None,
        )
        token, url = secrets.token_hex(), _here(settings)
        try:
            with run.console.waiting("serve", f"starting {settings.min_replicas} with {model.name}"):
                goes_on = await started(partial(start, app, settings, token), partial(is_ready, url))
            if goes_on:
                run.console.say(f"{settings.name} is served at http://{settings.host}:{settings.port} (ctrl-c ends it)")
                await _until_interrupted()
            if cut := await close(url, token, settings.close_s, run.console.say):
                run.console.say(f"{cut} requests are cut off")
        finally:
            await asyncio.to_thread(serve.shutdown)


def keep_responses(settings: ServingConfig, folder: Path) -> ServingConfig:
    """The settings of a server that keeps its responses in its folder, unless they name another file."""
    path = (settings.store.path or folder / RESPONSES).resolve()
    return replace(settings, store=replace(settings.store, path=path))


async def started(start: Callable[[], None], is_ready: Callable[[], Awaitable[bool]]) -> bool:
    """Starts the server; returns whether it goes on, which it does not after an interrupt. One that comes before the
    server is ready is passed on."""
    try:
        await asyncio.to_thread(start)
    except asyncio.CancelledError:
        # Ray looks at its replicas now and then, so clients may know of the server, and use it, before it does.
        if not await is_ready():
            raise
        return False
    return True


async def _until_interrupted() -> None:
    with suppress(asyncio.CancelledError):
        await asyncio.Event().wait()


def _here(settings: ServingConfig) -> str:
    """The server's address on this machine."""
    host = ANY_HOST.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
