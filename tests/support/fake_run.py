"""In place of `coa train`: processes with the titles of a run's parts, kept up, and a step now and then.

python -m tests.support.fake_run STEPS [fails] run_dir=FOLDER         ends after so many steps; resumes
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

PARTS = {
    "ray::RolloutEngine.events": 2,
    "VLLM::EngineCore": 2,
    "ray::ToolExecutor": 2,
    "ray::TeacherTeam.play": 1,
    "ray::TrajectoryBuffer": 1,
    "ray::RayTrainWorker": 2,
    "ray::TrainController": 1,
    "ray::WeightDirectory": 1,
    "ray::WeightHolder": 1,
    "ray::ToolDispatcher": 1,
    "ray::Site": 1,
}
LIVES = "import os, sys, time\nwhile os.getppid() == int(sys.argv[1]): time.sleep(0.1)"
BACK_S, STEP_S = 0.3, 0.3


def main(steps: int, folder: Path, *, fails: bool) -> int:
    if fails:
        return 1
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    metrics = folder / "metrics.jsonl"
    version = len(metrics.read_text().splitlines()) if metrics.exists() else 0
    parts = [(title, start(title)) for title, count in PARTS.items() for _ in range(count)]
    while version < steps:
        time.sleep(STEP_S)
        version += 1
        up = sum(process.poll() is None for title, process in parts if "Engine" in title) // 2
        row = {"stage": "rl", "step": version, "time": time.time(), "loss": 0.0, "engines_up": up}
        with metrics.open("a") as file:
            file.write(json.dumps({**row, "sync_alarms": 0, "staleness_max": 1}) + "\n")
        gone = [title for title, process in parts if process.poll() is not None]
        parts = [(title, process) for title, process in parts if process.poll() is None]
        time.sleep(BACK_S if gone else 0.0)
        parts += [(title, start(title)) for title in gone]
    ledger = [{"what": "start", "start": 0, "version": 0, "cursor": [0]}, {"what": "issue", "group": 0, "task": 0}]
    ledger[1]["version"] = 0
    ledger += [{"what": "drop", "group": 0, "reason": "no_variance", "again": False, "tokens": 9, "calls": 0}]
    ledger += [{"what": "finish", "version": 0}]
    (folder / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in ledger))
    share = {"pass_at_1": {"mean": 0.7}, "greedy": {"mean": 0.7}}
    (folder / "report.json").write_text(json.dumps({"evaluation": {"rl": share}}))
    (folder / "checkpoints" / "rl.json").write_text("{}")
    return 0


def start(title: str) -> "subprocess.Popen[bytes]":
    """Ends with this process, however that ends."""
    return subprocess.Popen([title, "-S", "-c", LIVES, str(os.getpid())], executable=sys.executable)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.exit(main(int(words[0]), Path(words[-1].removeprefix("run_dir=")), fails="fails" in words))
