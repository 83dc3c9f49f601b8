"""A job's time on a Ray cluster."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import ExitStack, closing
from typing import Any

from cluster.resources import Demand, require
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir


def in_session(
    config: Recipe,
    console: Console,
    body: Callable[[RunDir], Coroutine[Any, Any, None]],
    *,
    demands: Iterable[Sequence[Demand]],
) -> None:
    """Runs `body` in an event loop on a Ray cluster that has room for each of the sets of demands."""
    from cluster.resources import cluster_nodes
    from cluster.session import session

    with ExitStack() as stack:
        with console.waiting("ray", "starting, or finding the cluster"):
            stack.enter_context(session(config.session))
        nodes = cluster_nodes()
        for together in demands:
            require(together, nodes)
        with closing(RunDir(config, console)) as run:
            asyncio.run(body(run))
