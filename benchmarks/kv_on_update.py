"""What new weights cost the engine: `engine.kv_on_update` recompute and keep, with slow tools.

    python -m benchmarks.kv_on_update [--smoke]

The work is the recipe `benchmarks/speed/bench_loop.yaml`, whose policy stays as it is, so that both sides play the same
episodes. Each round starts an engine with one setting, then with the other. `recomputed` is the share of the tokens
that requests needed in the KV cache which the engine had computed for the same episode before (the metric
`recomputed_fraction`); the rates leave out the first steps and the last ones.
"""

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

from actors.rollout.config import KvOnUpdate
from benchmarks.harness import report
from benchmarks.speed.rates import loop_rate
from benchmarks.speed.runs import SLOW, STILL, bench, measured

STALENESS = 4
ROUNDS, STEPS = 3, 20
SMOKE_ROUNDS, SMOKE_STEPS = 1, 3
Figures = dict[str, float]


async def measure(folder: Path, start: Path, console: Any, rounds: int, steps: int) -> Figures:
    found: dict[KvOnUpdate, list[tuple[float, float]]] = {mode: [] for mode in KvOnUpdate}
    for number in range(rounds):
        for mode, figures in found.items():
            kept = (STILL, f"engine.kv_on_update={mode.value}", f"rl.window.max_staleness={STALENESS}")
            async with bench(folder, start, console, SLOW, *kept) as ours:
                ran = await ours.run(f"{mode.value}-{number}", f"rl.steps={steps}")
            figures.append((loop_rate(ran.records, STALENESS), ran.result["recomputed_fraction"]))
    told: Figures = {}
    for mode, figures in found.items():
        told[f"{mode.value}/trajectories_s"] = median(rate for rate, _ in figures)
        told[f"{mode.value}/recomputed"] = median(share for _, share in figures)
    pairs = zip(found[KvOnUpdate.keep], found[KvOnUpdate.recompute], strict=True)
    return {**told, "ratio": median(keep / recompute for (keep, _), (recompute, _) in pairs)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="one round of few steps, from a policy hardly trained")
    smoke = parser.parse_args().smoke
    rounds, steps = (SMOKE_ROUNDS, SMOKE_STEPS) if smoke else (ROUNDS, STEPS)
    began = time.monotonic()
    figures = measured(
        "kv_on_update", smoke, lambda folder, start, console: measure(folder, start, console, rounds, steps)
    )
    figures["took_s"] = time.monotonic() - began
    report("kv_on_update" + "_smoke" * smoke, figures, {})


if __name__ == "__main__":
    main()
