"""Runs a job on a Ray cluster."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from cluster.resources import Demand, Role, require
from coa.concurrency import Work
from coa.storage.checkpoints import open_folder
from coa.storage.digests import on_disk
from jobs.recipe.checks import check_room
from jobs.recipe.hub import require_hub_models
from jobs.recipe.needs import local_models
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of
from jobs.run.console import Console
from jobs.run.mirrored import mirrored
from jobs.run.run_dir import RunDir


def in_session(
    config: Recipe,
    console: Console,
    body: Callable[[RunDir], Work[None]],
    *,
    demands: Iterable[Sequence[Demand]],
    model: Path | None = None,
) -> None:
    """Runs `body` in an event loop on a Ray cluster, after a check that the cluster has room for each of the sets of
    demands and that its nodes see the files that the job needs. model: the folder of the model that the job works on;
    None for a job that trains in its run's folder, which says first what is to be known of its tasks."""
    from cluster.remote.shared import require_shared
    from cluster.resources import cluster_nodes
    from cluster.session import run_interruptible, session

    demands = list(demands)
    check_room(config, demands)
    if model is None:
        require_hub_models(config)
        for remark in world_of(config).remarks():
            console.say(remark)
    with ExitStack() as stack:
        with console.waiting("ray", "starting Ray, or joining the cluster"):
            stack.enter_context(session(config.session))
        nodes = cluster_nodes()
        for together in demands:
            require(together, nodes)
        by_role = config.placement.by_role
        if model is None:
            require_shared(Path(config.run_dir).resolve(), local_models(config), by_role=by_role)
            if (storage := storage_on_disk(config)) is not None:
                require_shared(storage, (), by_role=by_role, roles=(Role.learner,), key="checkpoints.storage")
        else:
            require_shared(None, [str(model.resolve())], by_role=by_role)
        run = RunDir(config, console)
        if model is None:
            stack.enter_context(mirrored(run))
        with closing(run):
            run_interruptible(body(run))


def storage_on_disk(config: Recipe) -> Path | None:
    """`checkpoints.storage` if it is a folder that learners have to see, and no store of objects."""
    if config.checkpoints.storage is None:
        return None
    folder = open_folder(config.checkpoints.storage)
    return Path(folder.path) if on_disk(folder.filesystem) else None
