"""How long a run takes to recover from each kind of kill, and whether its result and accounts stay right.

    python -m benchmarks.chaos.seeds runs/demo          three seeds of `benchmarks.chaos`, 30 kills each; resumes
    python -m benchmarks.chaos.seeds runs/demo --seeds 7 --kills 10
    python -m benchmarks.chaos.seeds --table            writes the recorded results into docs/performance.md

A kill is made while its victim is at work, 5 to 20 s after the recovery from the one before; a recovery ends with the
first step of the learners that was made with everything there again. Each seed's result is written to
benchmarks/results/chaos/seed-N.json, with the commit at which it was started or resumed last.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, commit, report
from benchmarks.table import DOCUMENT, filled

TARGETS = {"kills_left": "<= 0", "wrong": "<= 0", "minutes_longest": "<= 40"}
BEGIN = "<!-- table: python -m benchmarks.chaos.seeds --table -->"
PARTS = {
    "engine": "an engine's actor",
    "core": "vLLM's core process of an engine",
    "stop_engine": "an engine, stopped for 60 s",
    "rank": "a learner rank",
    "stop_rank": "a learner rank, stopped for 60 s",
    "tools": "a tool executor",
    "teacher": "a teacher",
    "buffer": "the buffer",
    "controller": "Ray Train's controller",
    "directory": "the directory of weights",
    "holder": "a holder of weights",
    "dispatcher": "the dispatcher of tools",
    "site": "the site of the tools",
    "node": "a node, with everything on it",
    "driver": "the driver (the same command was started again)",
    "stop_driver": "the driver, stopped for 60 s",
}
"""What is struck, by kind, in the order of the table."""


def figures_of(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Of the results of several seeds: times over all of them, in seconds."""
    figures: dict[str, float] = {
        "seeds": len(found),
        "kills": sum(one["kills"] for one in found),
        "kills_left": sum(one["asked"] - one["kills"] for one in found),
        "idle_victims": sum(sum(one["idle_victims"].values()) for one in found),
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


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """A row for each kind over all seeds, then a line for each seed."""
    figures = figures_of(found)
    rows = ["| what was killed | kills | seconds to recover, median | worst |", "|---|---|---|---|"]
    for kind, what in PARTS.items():
        if f"{kind}_median_s" in figures:
            kills = sum(one["by_kind"].get(kind, 0) for one in found)
            rows.append(f"| {what} | {kills} | {figures[f'{kind}_median_s']:.0f} | {figures[f'{kind}_worst_s']:.0f} |")
    rows += [
        "",
        "| seed | kills | rounds | wrong | held-out pass@1 | undisturbed | minutes | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one in sorted(found, key=lambda result: result["seed"]):
        rates = f"{one['pass_at_1']:.3f} | {one['pass_at_1_undisturbed']:.3f}"
        counts = f"{one['seed']} | {one['kills']} | {one['rounds']} | {len(one['wrong'])}"
        rows.append(f"| {counts} | {rates} | {one['took_s'] / 60:.0f} | {one['commit']} |")
    return "\n".join(rows)


def play(seed: int, words: Sequence[str], out: Path, results: Path) -> dict[str, Any]:
    """The result of a seed. Ends the benchmark where the command ends without one; a seed that was finished before
    keeps its file."""
    path, kept, made_at = out / "result.json", results / f"seed-{seed}.json", commit()
    path.unlink(missing_ok=True)
    status = subprocess.run([*words, "--seed", str(seed), "--out", str(out)], check=False).returncode
    if status not in (0, 1) or not path.exists():
        raise SystemExit(f"seed {seed}: `benchmarks.chaos` ended with status {status}, and without a result")
    found = {**json.loads(path.read_text()), "status": status}
    recorded = json.loads(kept.read_text()) if kept.exists() else {}
    if {**recorded, **found} != recorded:
        recorded = {**found, "commit": made_at}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(recorded, indent=1) + "\n")
    return recorded


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", default=Path("runs/demo"), help="a finished run of the recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--table", action="store_true", help="only write what was recorded into the document")
    options = parser.parse_args(arguments)
    if options.table:
        recorded = [json.loads(path.read_text()) for path in sorted((RESULTS / "chaos").glob("seed-*.json"))]
        DOCUMENT.write_text(filled(DOCUMENT.read_text(), table(recorded), BEGIN))
        return
    found: list[dict[str, Any]] = []
    for seed in options.seeds:
        words = [sys.executable, "-m", "benchmarks.chaos", "--recipe", "tiny", "--from-run", str(options.run)]
        words += ["--kills", str(options.kills)]
        if found:  # all seeds are compared with one undisturbed round
            words += ["--undisturbed", f"runs/chaos-{options.seeds[0]}"]
        found.append(play(seed, words, Path(f"runs/chaos-{seed}"), RESULTS / "chaos"))
    report("chaos", figures_of(found), TARGETS)


if __name__ == "__main__":
    main()
