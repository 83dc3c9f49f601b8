"""Records the results of a short run bit for bit, to compare them after a change that must not affect them.

    python -m benchmarks.tape record FILE        both seeds, about four minutes
    python -m benchmarks.tape compare FILE       exits with 1 and names the first difference, if there is one

A run distils, fine-tunes and does five steps of RL at `max_staleness=0`, where nothing depends on timing. The tape
contains the losses of both stages, the episodes and their rewards, and a digest of each model. Tapes are equal only on
the same machine with the same packages.
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from benchmarks.harness import ROOT

SEEDS = (0, 1)
SETTINGS = (
    "distill.runs=12000",
    "distill.keep=6000",
    "sft.steps=240",
    "rl.steps=5",
    "rl.window.max_staleness=0",
    "rl.window.groups_per_batch=8",
    # A batch that ends short would depend on which of its groups came first.
    "rl.window.max_refills=100",
    "evaluation.tasks=12",
    "evaluation.samples=1",
)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def play(seed: int, folder: Path) -> dict[str, Any]:
    command = ["train", "--recipe", "tiny", f"run_dir={folder}", f"seed={seed}", *SETTINGS]
    subprocess.run([sys.executable, "-m", "jobs.cli", *command], cwd=ROOT, check=True, stdout=sys.stderr)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = {
        stage: [[record["loss"], record["grad_norm"]] for record in records if record["stage"] == stage]
        for stage in ("sft", "rl")
    }
    return {
        "losses": losses,
        "episodes": sorted(episodes(folder)),
        "sft_model": digest(folder / "checkpoints" / "sft-model" / "model.safetensors"),
        "model": digest(folder / "model" / "model.safetensors"),
    }


def episodes(folder: Path) -> Iterator[list[Any]]:
    """[task, group, sample, text, reward] of every episode that reinforcement played."""
    for path in sorted((folder / "trajectories").glob("rl-*.parquet")):
        for row in pq.read_table(path).to_pylist():
            yield [row[name] for name in ("task_id", "group", "sample", "text", "reward")]


def record() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return {str(seed): play(seed, Path(folder) / f"seed-{seed}") for seed in SEEDS}


def difference(before: Any, after: Any, where: str = "") -> str | None:
    """The first place where two tapes differ, such as `0.losses.rl.2.0: 0.5 -> 0.25`."""
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        pairs = [(key, before[key], after[key]) for key in before]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(index, *pair) for index, pair in enumerate(zip(before, after, strict=True))]
    else:
        return None if before == after else f"{where}: {before!r:.200} -> {after!r:.200}"
    found = (difference(old, new, f"{where}.{key}".lstrip(".")) for key, old, new in pairs)
    return next((one for one in found if one is not None), None)


def main(what: str, path: Path) -> int:
    tape = json.loads(json.dumps(record()))
    if what == "record":
        path.write_text(json.dumps(tape, indent=1) + "\n")
        return 0
    found = difference(json.loads(path.read_text()), tape)
    print("equal" if found is None else f"differs at {found}")
    return 0 if found is None else 1


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("record", "compare"):
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
