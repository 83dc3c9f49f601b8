"""Runs of the tiny recipe for experiments: trained once, and evaluated by task."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TypeVar

from benchmarks.harness import RESULTS, ROOT, commit
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


def kept(name: str, seed: int, measure: Callable[[int], Found]) -> Found:
    """What a seed came to, from `results/NAME/` where it was measured before, with the commit: to be deleted where what
    is measured changes. `Found` is of plain JSON."""
    path = RESULTS / name / f"seed-{seed}.json"
    if not path.exists():
        measured = {"commit": commit(), "found": measure(seed)}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measured, separators=(",", ":")) + "\n")
    return json.loads(path.read_text())["found"]


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
