"""The parts of a machine that `coa doctor` looks at: one table, with a check for each that starts nothing heavy."""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coa import builds
from coa.errors import UserError

if TYPE_CHECKING:
    from jobs.recipe.schema import Recipe

GIB = 1 << 30
STAGES = ("sft", "rl")
"""Stages whose models and memory are looked at."""
DRIVER_S = 30.0
"""Timeout for nvidia-smi, in seconds: it may have to start each GPU first."""
IMPORT_S = 60.0
"""Timeout for a process that imports PyTorch, in seconds."""
CPU = Path("/proc/cpuinfo")
BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Names that the kernel has for arithmetic in bfloat16, the last one on ARM."""
WORTH_IT = 1.2
"""How much faster bfloat16 has to be: its log-probs differ more between engine and learner."""


class State(StrEnum):
    OK = "ok"
    WARN = "warn"
    """A part of the system will not run, or runs slower."""
    MISSING = "missing"
    """Something that is needed is missing."""


@dataclass(frozen=True, slots=True)
class Finding:
    state: State
    what: str
    type: str = ""
    """The command to type; empty if nothing is to be done."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the system: one or more rows of the table that `coa doctor` shows."""

    name: str
    check: Callable[[Recipe | None], Iterator[Finding]]
    """Called with the recipe whose needs are checked; None checks what every recipe needs."""


def containment() -> Finding:
    """How a program is contained in the sandbox."""
    from coa.tools.sandbox.containment import describe

    found = describe()
    refused = [name for name, allowed in (("sockets", found.sockets), ("threads", found.threads)) if not allowed]
    without = f"; programs get no {' and no '.join(refused)}" if refused else ""
    return Finding(State.OK if found.cgroup else State.WARN, f"{found.why}{without}", found.advice)


def sandbox(recipe: Recipe | None) -> Iterator[Finding]:
    from coa.tools.sandbox.command import INSTALL
    from coa.tools.sandbox.sandbox import Kind, SandboxConfig, require_bubblewrap

    config = SandboxConfig() if recipe is None else recipe.tools.sandbox
    limits = f"{config.cpu_s} s of CPU, {config.wall_s:g} s, {config.memory_mib} MiB, files of {config.files_mib} MiB"
    if config.kind is Kind.none:
        yield Finding(State.WARN, f"none, as the recipe says; limits: {limits}", "tools.sandbox.kind=bubblewrap")
        return
    failed = ""
    for warm in (True, False) if config.warm else (False,):
        try:
            require_bubblewrap(replace(config, warm=warm))
        except UserError as error:
            failed = str(error.__cause__ or error)
        else:
            mode = "warm" if warm else "cold: each program starts an interpreter"
            state = State.OK if warm or not config.warm else State.WARN
            yield Finding(state, f"{mode}; limits: {limits}", "" if state is State.OK else "tools.sandbox.warm=false")
            yield containment()
            return
    yield Finding(State.MISSING, failed.splitlines()[0], INSTALL.partition(": ")[2].rstrip(")"))


def gpu(recipe: Recipe | None) -> Iterator[Finding]:
    placed = recipe.placement if recipe is not None else None
    here = not address_of(recipe)  # else the GPUs are those of the cluster
    needed = (
        here and placed is not None and (placed.engine_gpus > 0 or placed.learner_gpus > 0 or placed.scorer_gpus > 0)
    )
    asked = ("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=DRIVER_S, check=True)
    except subprocess.TimeoutExpired:
        told = f"nvidia-smi gave no answer for {DRIVER_S:g} s"
        yield Finding(State.MISSING if needed else State.WARN, told, "nvidia-smi  (the driver's)")
        return
    except (OSError, subprocess.SubprocessError):
        state = State.MISSING if needed else State.OK
        why = "none, but the recipe needs GPUs" if needed else "none; recipes for CPUs work"
        yield Finding(state, why, "nvidia-smi  (the driver's; it has to list the GPUs)" if needed else "")
        return
    cards = done.stdout.strip().splitlines()
    if not cards:
        yield Finding(State.WARN, "none listed")
        return
    card, _, driver = cards[0].rpartition(", ")
    yield Finding(State.OK, f"{len(cards)}: {card}, driver {driver}")
    yield from _libraries(driver, State.MISSING if needed else State.WARN)


def _libraries(driver: str, state: State) -> Iterator[Finding]:
    """Findings on why the installed libraries can't use the GPUs that are there. state: of such a fault."""
    libraries = (("PyTorch", builds.torch_is_for_cpus), ("vLLM", builds.vllm_is_for_cpus))
    if for_cpus := [name for name, is_so in libraries if is_so()]:
        yield Finding(state, f"{' and '.join(for_cpus)}: built for CPUs, so the GPUs are not used", builds.FOR_GPUS)
        return
    try:
        code = "import torch; print(torch.cuda.is_available())"
        words = (sys.executable, "-c", code)
        told = subprocess.run(words, capture_output=True, text=True, timeout=IMPORT_S, check=False).stdout
    except subprocess.TimeoutExpired:
        told = ""
    if told.strip() == "True":  # also with an old driver that NVIDIA's package for compatibility helps
        return
    cuda = builds.torch_cuda()
    if (branch := driver.partition(".")[0]).isdecimal() and int(branch) < (oldest := builds.oldest_driver(cuda)):
        yield Finding(
            state,
            f"driver {driver} is too old for PyTorch's build for CUDA {cuda}, which needs {oldest} or newer",
            f"install NVIDIA's driver {oldest} or newer",
        )
        return
    yield Finding(state, "PyTorch does not see the GPUs", f"{sys.executable} -c '{code}'")


def numbers(recipe: Recipe | None) -> Iterator[Finding]:
    """Whether this CPU is faster in bfloat16, in learners and in engines with few requests."""
    if not builds.torch_is_for_cpus():
        yield Finding(State.OK, "bfloat16 on GPUs")
        return
    if not BFLOAT16.intersection(CPU.read_text().split()):
        yield Finding(State.OK, "float32: this CPU has no arithmetic in bfloat16")
        return
    words = (sys.executable, "-m", "actors.number_types")
    try:
        told = subprocess.run(words, capture_output=True, text=True, timeout=IMPORT_S, check=True).stdout
    except (subprocess.SubprocessError, OSError):
        yield Finding(State.WARN, "PyTorch could not multiply matrices", " ".join(words))
        return
    learner, engine = json.loads(told).values()
    better = [key for key, times in (("model.dtype", learner), ("engine.dtype", engine)) if times >= WORTH_IT]
    yield Finding(
        State.OK,
        f"bfloat16 takes {1 / learner:.1f} times as long as float32 in learners, {1 / engine:.1f} times in engines "
        "with few requests",
        " ".join(f"{key}=bfloat16" for key in better),
    )


def shared_memory(recipe: Recipe | None) -> Iterator[Finding]:
    from actors.weights.segment import SHARED_MEMORY
    from cluster.session import SessionConfig

    store = (SessionConfig() if recipe is None else recipe.session).object_store_gib
    weights, named = _versions_gib(recipe)
    needed = store + weights
    free = shutil.disk_usage(SHARED_MEMORY).free / GIB
    what = f"{free:.1f} GiB free in {SHARED_MEMORY}; Ray's object store needs {store:g} GiB, {named}"
    size = f"mount -o remount,size={max(2, math.ceil(1.5 * needed))}G {SHARED_MEMORY}  (Docker: --shm-size)"
    state = State.MISSING if free < needed else State.WARN if free < needed + store else State.OK
    yield Finding(state, what, "" if state is State.OK else size)


def _versions_gib(recipe: Recipe | None) -> tuple[float, str]:
    """GiB that the versions of the weights which are kept at a time need of it, and the same in words."""
    from actors.learner.sizes import architecture
    from actors.weights.ipc import NAME as IPC
    from coa.planning.memory import VERSIONS_IN_MEMORY, shared_memory_bytes

    if recipe is not None and recipe.rl.weights.transport == IPC:
        return 0.0, "and the weights stay in the GPU's memory"
    built = None if recipe is None else architecture(recipe.model)
    if recipe is None or built is None:
        return 0.0, "plus the weights, whose size is not known"
    found = shared_memory_bytes(built, recipe.model.dtype) / GIB
    return found, f"and {VERSIONS_IN_MEMORY} versions of the weights {found:.2g} GiB"


def disk(recipe: Recipe | None) -> Iterator[Finding]:
    folder = Path("." if recipe is None else recipe.run_dir).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free / GIB
    state = State.MISSING if free < 1 else State.WARN if free < 10 else State.OK
    yield Finding(state, f"{free:.0f} GiB free at {folder}", "" if state is State.OK else "run_dir=A_LARGER_DISK/run")


def ray(recipe: Recipe | None) -> Iterator[Finding]:
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        yield Finding(State.MISSING, "the package is not installed", "pip install -e .")
        return
    address = address_of(recipe)
    if not address:
        yield Finding(State.OK, f"{version}; commands start a cluster on this machine")
        return
    # Ray's modules are loaded only if there is a cluster to ask.
    from cluster.remote.reach import require_cluster

    try:
        require_cluster(address)
        yield Finding(State.OK, f"{version}; the cluster at {address} answers")
    except UserError as error:
        yield Finding(State.MISSING, f"{version}; {error}", "ray start --head, or unset RAY_ADDRESS")


def address_of(recipe: Recipe | None) -> str:
    """Address of the cluster that is used; empty if a command starts one on this machine."""
    return (recipe.session.address if recipe is not None else None) or os.environ.get("RAY_ADDRESS", "")


def compilers(recipe: Recipe | None) -> Iterator[Finding]:
    lacking = [tool for tool in ("g++", "ninja") if shutil.which(tool) is None]
    if lacking:
        packages = " ".join({"g++": "g++", "ninja": "ninja-build"}[tool] for tool in lacking)
        yield Finding(
            State.MISSING, f"{' and '.join(lacking)}, which DeepSpeed needs to compile", f"apt-get install {packages}"
        )
    else:
        yield Finding(State.OK, "g++ and ninja")


def ports(recipe: Recipe | None) -> Iterator[Finding]:
    from coa.serving.config import ServingConfig
    from jobs.commands.record import PORT

    served = (ServingConfig() if recipe is None else recipe.serving).port
    for command, port in (("serve", served), ("record", PORT)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                yield Finding(
                    State.WARN,
                    f"{port} is taken",
                    f"coa record --port {port + 1} ..."
                    if command == "record"
                    else f"coa serve ... serving.port={port + 1}",
                )
            else:
                yield Finding(State.OK, f"{port} is free for `coa {command}`")


def models(recipe: Recipe | None) -> Iterator[Finding]:
    """The models that the recipe loads, and the memory that it needs, as the check of a run looks at them."""
    if recipe is None:
        yield Finding(State.OK, "depends on the recipe")
        return
    from jobs.recipe.machine import memory_of
    from jobs.recipe.models import models_of

    for look in (partial(models_of, recipe, STAGES, ()), partial(memory_of, recipe, STAGES)):
        try:
            for found in look():
                state = State.WARN if found.caution or not found.looked else State.OK
                yield Finding(state, found.caution or found.what if found.looked else f"not looked at: {found.what}")
        except UserError as error:
            yield Finding(State.MISSING, str(error))


def keys(recipe: Recipe | None) -> Iterator[Finding]:
    if recipe is None:
        yield Finding(State.OK, "depends on the recipe", "coa doctor --recipe NAME")
        return
    named = dict(variables_of(recipe))
    if not named:
        yield Finding(State.OK, "the recipe needs none")
    for variable, where in sorted(named.items()):
        if os.environ.get(variable, "").strip():
            yield Finding(State.OK, f"{variable} ({where})")
        else:
            yield Finding(State.MISSING, f"{variable} ({where}) is not set", f"export {variable}=...")


def variables_of(settings: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """The environment variables that settings name, each with the setting: ("JUDGE_KEY", "tools.judge.key_env")."""
    if is_dataclass(settings):
        within = {one.name: getattr(settings, one.name) for one in fields(settings)}
    elif isinstance(settings, dict):
        within = settings
    else:
        return
    for name, value in within.items():
        at = f"{where}.{name}".removeprefix(".")
        if str(name).endswith("key_env") and isinstance(value, str):
            yield value, at
        elif name == "env" and isinstance(value, tuple | list):
            yield from ((str(variable), at) for variable in value)
        else:
            yield from variables_of(value, at)


PARTS = (
    Part("sandbox", sandbox),
    Part("GPU", gpu),
    Part("numbers", numbers),
    Part("shared memory", shared_memory),
    Part("disk", disk),
    Part("Ray", ray),
    Part("compilers", compilers),
    Part("ports", ports),
    Part("keys", keys),
    Part("models", models),
)
