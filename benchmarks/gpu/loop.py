"""(d) A whole run on one card: the demo's tasks and model, in bfloat16, whose engine and learner take turns on the GPU
and hand weights over in its memory."""

import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean

from benchmarks.gpu.models import Size

STEPS, MEAN_OF = 20, 5
SETTINGS = (
    "distill.runs=6000",
    "sft.steps=150",
    f"rl.steps={STEPS}",
    "rl.window.max_staleness=0",
    "evaluation.tasks=60",
    "evaluation.samples=1",
)
ON_GPU = (
    *("placement.engine_gpus=0.5", "placement.learner_gpus=0.5", "sft.learner.ranks=1", "rl.learner.ranks=1"),
    *("engine.gpu_memory_utilization=0.4", "engine.sleep_mode=true", "rl.weights.transport=ipc"),
    *("model.dtype=bfloat16", "engine.dtype=bfloat16", "engine.probe_tolerance=0.5"),
)


def measure(size: Size, folder: Path) -> dict[str, float]:
    run = folder / "run"
    settings = [*SETTINGS, *(ON_GPU if size.device.type == "cuda" else ()), f"run_dir={run}"]
    words = [sys.executable, "-m", "jobs.cli", "train", "--recipe", "tiny", *settings]
    subprocess.run(words, stdout=sys.stderr, check=True)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [record for record in records if record.get("stage") == "rl" and "reward" in record]
    return {
        "reward_first": fmean(step["reward"] for step in steps[:MEAN_OF]),
        "reward_last": fmean(step["reward"] for step in steps[-MEAN_OF:]),
        "staleness_max": max(step.get("staleness_max", 0.0) for step in steps),
        "sync_alarms": sum(step.get("sync_alarms", 0.0) for step in steps),
        "steps": float(len(steps)),
    }
