"""Runs of the tiny recipe for experiments: trained once, and evaluated by task."""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, TypeVar

from benchmarks.harness import MIXED, RESULTS, ROOT, commit, refuse_mixed, report
from coa.reporting.statistics import paired_difference

RUNS = ROOT / "runs"
Found = TypeVar("Found")


def coa(*words: str, extensions: str = "") -> None:
    command = [sys.executable, "-m", "jobs.cli", *words]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "COA_EXTENSIONS": extensions})


def train(folder: Path, *overrides: str) -> Path:
    """A run of the tiny recipe, finished; one that was interrupted goes on."""
    if not (folder / "report.json").exists():
        coa("train", "--recipe", "tiny", f"run_dir={folder}", *overrides)
    return folder


def tuned_copy(run: Path, folder: Path) -> Path:
    """A run that stands where `run` stood after fine-tuning and its evaluation, free to go on in another way."""
    if not folder.exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        for name in ("tokenizer", "start", "sft-model", "sft.json", "evaluation-sft.json"):
            _copy(run / "checkpoints" / name, part / "checkpoints" / name)
        _copy(run / "trajectories" / "evaluation-sft.parquet", part / "trajectories" / "evaluation-sft.parquet")
        _copy(run / "metrics.jsonl", part / "metrics.jsonl")
        part.rename(folder)
    return folder


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = shutil.copytree if source.is_dir() else shutil.copy
    copy(source, target)


def tiny_run() -> Path:
    """The recipe as it is: a strong model, and the data that it was fine-tuned on."""
    return train(RUNS / "tiny")


def outcomes(episodes: Path, mode: str, family: str | None = None) -> dict[str, list[bool]]:
    """Whether each task's attempts were right, by task id; `mode` is "greedy" or "sampled"."""
    import pyarrow.parquet as pq

    found: dict[str, list[bool]] = {}
    for row in pq.read_table(episodes, columns=["task_id", "family", "group", "correct"]).to_pylist():
        if row["group"] == mode and family in (None, row["family"]):
            found.setdefault(row["task_id"], []).append(row["correct"])
    return dict(sorted(found.items()))


def rates(episodes: Path, mode: str, family: str | None = None) -> dict[str, float]:
    """The share of each task's attempts that were right."""
    return {task: sum(right) / len(right) for task, right in outcomes(episodes, mode, family).items()}


@dataclass(frozen=True)
class Kept(Generic[Found]):
    """What a seed came to, and the commit at which it was measured."""

    commit: str
    found: Found


def path_of(name: str, seed: int) -> Path:
    return RESULTS / name / f"seed-{seed}.json"


def kept(name: str, seed: int, measure: Callable[[int], Found]) -> Kept[Found]:
    """What a seed came to, from `results/NAME/` if it was measured before: to be deleted when what is measured changes.
    `Found` is of plain JSON."""
    path, now = path_of(name, seed), commit()
    if not path.exists():
        measured = {"commit": now, "found": measure(seed)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measured, separators=(",", ":")) + "\n")
    result = read_kept(path)
    if result.commit != now:
        print(f"{path} was measured at {result.commit} and is not measured again", file=sys.stderr)
    return result


def read_kept(path: Path) -> Kept[Any]:
    read = json.loads(path.read_text())
    return Kept(read["commit"], read["found"])


def commits_of(name: str, seeds: Sequence[int]) -> dict[str, str]:
    """The commit of each seed, by "seed N"; those that are not measured yet will have the present one."""
    paths = {f"seed {seed}": path_of(name, seed) for seed in seeds}
    return {seed: read_kept(path).commit if path.exists() else commit() for seed, path in paths.items()}


def by_seeds(
    name: str,
    description: str,
    one_seed: Callable[[int], Found],
    compare: Callable[[list[Found]], dict[str, float]],
    targets: Mapping[str, str],
) -> None:
    """The command of a benchmark that compares over seeds."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--mixed", action="store_true", help=MIXED)
    given = parser.parse_args()
    commits = commits_of(name, given.seeds)
    if not given.mixed:
        refuse_mixed(name, commits)
    seeds = [kept(name, seed, one_seed).found for seed in given.seeds]
    report(name, compare(seeds), targets, commits)


def compared(name: str, after: Sequence[float], before: Sequence[float]) -> dict[str, float]:
    """Both means, and their paired difference over tasks with its 95 % interval, as figures of that name."""
    difference = paired_difference(after, before)
    low, high = difference["ci95"]
    return {
        f"{name}_before": fmean(before),
        f"{name}_after": fmean(after),
        f"{name}_difference": difference["mean"],
        f"{name}_low": low,
        f"{name}_high": high,
        f"{name}_tasks": difference["n"],
    }
