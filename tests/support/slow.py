"""The parts of `make nightly`, by subject: who changes a subject runs its part."""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
NIGHTLY = "COA_FUZZ" in os.environ
"""Whether random inputs are as many as in `make nightly`."""
RANDOM = "random"
"""The part of quick tests, each with inputs that are drawn anew."""
_JOBS = "tests/jobs/test_"
PARTS: Mapping[str, tuple[str, ...]] = {
    "core": ("tests/coa", "tests/actors", "tests/project", "tests/benchmarks"),
    "models": (
        "tests/actors/learner/test_families",
        "tests/actors/rollout/test_served_families",
        "tests/jobs/stages/test_tokenizers",
        f"{_JOBS}pretrained",
    ),
    "cluster": ("tests/cluster",),
    "stages": ("tests/jobs/stages", "tests/jobs/teachers"),
    "runs": tuple(
        _JOBS + name for name in ("api", "documented", "loop_example", "own_tasks", "programs", "security", "trained")
    ),
    "serve": tuple(_JOBS + name for name in ("follow", "replicas", "serv", "strangers", "submit_real")),
    "faults": ("tests/jobs/faults",),
    "chaos": ("tests/benchmarks/chaos",),
    RANDOM: (),
}
"""Beginnings of the paths of slow tests; of two that fit, the longer one counts."""
MAY_BE_MISSING = ("COA_BENCHMARKS", "need root", "needs a mount", "no cgroup")
"""What nothing can install: a slow test that is skipped for a reason with such words may be."""


def part_of(file: str) -> str | None:
    """The part that a file's slow tests belong to; None if no part names it."""
    fitting = [(len(path), part) for part, paths in PARTS.items() for path in paths if file.startswith(path)]
    return max(fitting)[1] if fitting else None


def minutes(seconds: Mapping[str, float]) -> list[str]:
    """A table of minutes by file, longest first, with their sum."""
    rows = sorted(seconds.items(), key=lambda row: -row[1])
    return [f"{taken / 60:6.1f} min  {name}" for name, taken in [*rows, ("in all", sum(seconds.values()))]]


def may_be_skipped(reason: str) -> bool:
    return any(words in reason for words in MAY_BE_MISSING)
