"""Submissions of `coa submit`: a command, checked here as far as possible, or a manifest for KubeRay that is derived
from its recipe.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from typing import Any

from actors.learner.sizes import architecture
from cluster.manifests.groups import Machine, groups_of
from cluster.manifests.kuberay import (
    HEAD_MEMORY_GIB,
    RECIPES,
    Document,
    Site,
    ray_cluster,
    ray_job,
    ray_service,
    serve_config,
)
from cluster.remote.jobs import command
from cluster.resources import engine_demands
from coa.errors import UserError
from coa.extensions import VARIABLE as EXTENSIONS
from coa.http.keys import is_secret
from coa.http.secrets import secret_value
from coa.json_object import Json
from coa.planning.memory import GIB, width_of
from jobs.commands.command import Command, Job, Parse
from jobs.recipe import find
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.sent import Parcel, parcel

SUBMIT, SERVE = "submit", "serve"
DRIVER, COPIED = 4 * GIB, 1.3
"""Memory of a driver, and times the size of a pretrained model that copying it takes: the whole model, and what is
being written (measured: 1.05)."""
PRINTED = ("-h", "--help", "--benchmarks")
"""Arguments at which a command prints something and ends."""
BY_ROLE = "placement.by_role=true"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A parsed command line of `coa`."""

    words: tuple[str, ...]
    command: Command
    options: Mapping[str, Any]
    config: Recipe | None
    """None for a command without a recipe."""


def parse(words: Sequence[str], folder: Path, parse_command: Parse) -> Submitted:
    """Parses a command and its recipe. Raises UserError for mistakes that the job would report on the cluster, and for
    a recipe that is not in the folder that is sent."""
    from coa.config import load

    if not words:
        raise UserError("coa submit needs a command, such as: coa submit --address URL train --recipe tiny")
    if words[0] == SUBMIT:
        raise UserError("coa submit does not submit itself")
    for word in words:
        refuse_secrets(word, "an argument")
        if word in PRINTED:
            raise UserError(f"{word} only prints something: type it without coa submit")
    found, options = parse_command(words)
    if not isinstance(found, Job):
        return Submitted(tuple(words), found, options, None)
    recipe = find_recipe(options["recipe"]) if options["recipe"] else None
    if recipe is not None and recipe.parent != find.RECIPES and (recipe.is_absolute() or ".." in recipe.parts):
        raise UserError(f"{recipe} is not in {folder}, of which a copy is sent; give a path within it")
    return Submitted(tuple(words), found, options, load(Recipe, recipe, (*options["overrides"], *_extra(options))))


def parcel_of(submitted: Submitted, folder: Path, requirements: Path | None, more: Sequence[Path]) -> Parcel:
    """The files that the command needs of the folder; raises UserError for a file with a secret."""
    extensions = [name.strip() for name in os.environ.get(EXTENSIONS, "").split(",") if name.strip()]
    recipe = submitted.options.get("recipe")
    named = (submitted.words, find_recipe(recipe) if recipe else (), submitted.config)
    return parcel(folder, settings=named, extensions=extensions, requirements=requirements, more=more)


def refuse_secrets(text: str, what: str) -> None:
    if kind := secret_value(text, os.environ):
        raise UserError(
            f"{what} holds {kind}, and everybody who sees the cluster would see it: "
            "name the variable in the recipe (key_env), and set it on the cluster's nodes"
        )


def mounted(submitted: Submitted) -> tuple[Submitted, dict[str, str]]:
    """The command with its recipe where pods see it, and the recipe's text by name, if it is a file of the user's own.
    Raises UserError for one with a secret in it."""
    name = submitted.options.get("recipe")
    if not name or (path := find_recipe(name)).parent == find.RECIPES:
        return submitted, {}
    text, there = path.read_text(encoding="utf-8"), f"{RECIPES}/{path.name}"
    refuse_secrets(text, name)
    forms = {name: there, f"--recipe={name}": f"--recipe={there}"}
    words = tuple(forms.get(word, word) for word in submitted.words)
    return replace(submitted, words=words, options={**submitted.options, "recipe": there}), {path.name: text}


def _extra(options: Mapping[str, Any]) -> Sequence[str]:
    return options.get("said") or ()


def plain_variables(names: Sequence[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Variables to send by value; raises UserError for one that is not set, or whose name looks like a secret's."""
    for name in names:
        if is_secret(name):
            raise UserError(
                f"${name} looks like a secret, which every user of the cluster could read: set it on its nodes"
            )
        if name not in environment:
            raise UserError(f"${name} is not set")
        refuse_secrets(environment[name], f"${name}")
    sent = [*names, *([EXTENSIONS] if EXTENSIONS in environment else [])]
    return {name: environment[name] for name in sent}


def manifest(submitted: Submitted, site: Site, machine: Machine, *, cluster_only: bool = False) -> Document:
    """The RayJob or RayService of a command with a recipe, or the RayCluster that it would run on."""
    job, config = submitted.command, submitted.config
    if not isinstance(job, Job) or config is None:
        raise UserError(f"coa {job.name} has no recipe, from which a manifest is derived: it needs no cluster")
    if job.name == SERVE and not cluster_only:
        # No spot machines, since clients wait for the server. Each replica has tool executors of its own.
        groups = groups_of([engine_demands(config.placement) * config.serving.max_replicas], machine)
        return ray_service(
            replace(site, spot=None), groups, serve_config(_served(submitted, PurePosixPath(site.storage)))
        )
    groups = groups_of(job.demands(config).values(), machine)
    site = replace(site, head_memory_gib=max(HEAD_MEMORY_GIB, head_memory_gib(config)))
    if cluster_only:
        return ray_cluster(site, groups)
    return ray_job(site, groups, command(_by_role(submitted.words, submitted.options["overrides"])))


def head_memory_gib(config: Recipe) -> int:
    """Memory of the driver's node in GiB: a pretrained model is copied there, as it will be trained."""
    built = architecture(config.model)
    if built is None or config.model.path is None:
        return 0
    return math.ceil((DRIVER + COPIED * width_of(config.model.dtype) * built.parameters) / GIB)


def _by_role(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The command with BY_ROLE next to its other overrides, since the parser takes overrides in one place only."""
    place = len(words) - words[::-1].index(overrides[-1]) if overrides else len(words)
    return [*words[:place], BY_ROLE, *words[place:]]


def _served(submitted: Submitted, storage: PurePosixPath) -> Json:
    """The arguments of `jobs.serving:app`."""
    options = submitted.options
    if options["model"] is None:
        raise UserError("--follow is for a server beside a run: a RayService needs --model")
    recipe = {"recipe": options["recipe"]} if options["recipe"] else {}
    return {
        "model": str(storage / options["model"]),
        **recipe,
        "overrides": [*options["overrides"], "serving.host=0.0.0.0"],
    }


def default_name(submitted: Submitted) -> str:
    """The name of the resource, from the command and its recipe: "coa-train-tiny"."""
    recipe = submitted.options.get("recipe")
    parts = ["coa", submitted.command.name, *([Path(recipe).stem] if recipe else [])]
    return "-".join(parts).replace("_", "-").lower()


def default_image() -> str:
    return f"chain-of-agents:{version('chain-of-agents')}"
