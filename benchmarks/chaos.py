"""How long a run takes to recover from each kind of kill, and whether its result and accounts stay right.

    python -m benchmarks.chaos runs/demo                three seeds of `coa chaos`, 30 kills each; resumes
    python -m benchmarks.chaos runs/demo --seeds 7 --kills 10

A kill is made while its victim is at work, 5 to 20 s after the recovery from the one before; a recovery ends with the
first step of the learners that was made with everything there again.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import report

TARGETS = {"kills_left": "<= 0", "wrong": "<= 0"}


def figures_of(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the results of several seeds: times over all of them, in seconds."""
    figures: dict[str, float] = {
        "seeds": len(found),
        "kills": sum(one["kills"] for one in found),
        "kills_left": sum(one["asked"] - one["kills"] for one in found),
        "idle_victims": sum(one["idle_victims"] for one in found),
        "wrong": sum(len(one["wrong"]) for one in found),
        "minutes_longest": max(one["took_s"] for one in found) / 60,
    }
    for one in found:
        if one["pass_at_1"] is not None and one["pass_at_1_undisturbed"] is not None:
            figures[f"pass_at_1_apart_{one['seed']}"] = one["pass_at_1"] - one["pass_at_1_undisturbed"]
    for kind in sorted({kind for one in found for kind in one["times"]}):
        times = sorted(time for one in found for time in one["times"].get(kind, ()))
        figures[f"{kind}_median_s"] = times[len(times) // 2]
        figures[f"{kind}_worst_s"] = times[-1]
        figures[f"{kind}_commands"] = sum(one["restarts"].get(kind, 0) for one in found)
    return {name: round(value, 3) for name, value in figures.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a finished run of the tiny recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kills", type=int, default=30)
    options = parser.parse_args(arguments)
    found = []
    for seed in options.seeds:
        out = Path(f"runs/chaos-{seed}")
        words = ["--from-run", str(options.run), "--kills", str(options.kills), "--seed", str(seed), "--out", str(out)]
        if found:  # all seeds are compared with one undisturbed round
            words += ["--undisturbed", f"runs/chaos-{options.seeds[0]}"]
        subprocess.run([sys.executable, "-m", "jobs.cli", "chaos", "--recipe", "tiny", *words], check=False)
        found.append(json.loads((out / "result.json").read_text()))
    report("chaos", figures_of(found), TARGETS)


if __name__ == "__main__":
    main()
