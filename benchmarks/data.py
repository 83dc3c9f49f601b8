"""The cost of moving data from engines to learners: 1,000 trajectories of 8k tokens a step, and the driver's memory.

    python -m benchmarks.data [--smoke]

Everything between engine and learner is the code of a run. The engine returns noise without delay, and the learner
packs its batch and then sleeps for LEARN_S: 137,000 tokens per second, an assumed throughput of two nodes with eight
GPUs. `overhead` is the share of time that the learner does not spend in LEARN_S while batches are waiting: it asks for
its orders (`order_s`, long only if the engine is too slow), fetches the batch from the object store, and packs it.
`driver_cpu` is the CPU time of the driver, as a share of a core; it runs beside the learners, and `put_s` is the part
of it that writes a batch to the object store.

Memory is the driver's resident memory over consecutive small steps: `growth` is its increase per trajectory that has
passed through, as a share of the trajectory's size.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import ray

from actors.garbage import frozen_gc
from actors.learner.buffer import Finished, Started, Stepped
from actors.tools.executor import ExecutorConfig
from actors.tools.remote import ExecutorActor
from benchmarks.constrained import make_model
from benchmarks.harness import report
from benchmarks.speed.runs import recipe
from benchmarks.speed.synthetic import SyntheticEngine, SyntheticLearnerGroup
from cluster.engine_actor import launcher
from cluster.pool import EnginePool
from cluster.session import SessionConfig, session
from coa.reporting.metrics import read_metrics
from jobs.recipe.schema import Recipe
from jobs.run.console import Console, open_console
from jobs.run.run_dir import RunDir
from jobs.stages.engines import places_of
from jobs.stages.reinforcement.loop import Reinforcement
from jobs.stages.rl import learners_of

TOKENS, GROUP, LEARN_S = 8192, 8, 60.0
BYTES = 21 * TOKENS
"""Of a trajectory as a sample: ids, mask, two weights, log-probs and versions."""
TARGETS = {"overhead": "<= 0.03", "driver_cpu": "<= 0.03", "growth": "<= 0.02"}
Figures = dict[str, float]


def settings(folder: Path, groups: int, steps: int) -> Recipe:
    limits = f"agent.limits.max_turn_tokens={TOKENS}", f"agent.limits.max_tokens={TOKENS}"
    window = f"rl.window.groups_per_batch={groups}", "rl.window.max_staleness=1"
    return recipe(folder, *limits, *window, f"rl.steps={steps}", f"rl.group={GROUP}")


class Watched:
    """The driver's own figures at each step."""

    def __init__(self) -> None:
        self.process = psutil.Process()
        self.memory: list[float] = []
        self.cpu: list[float] = []
        self.moments: list[float] = []
        self.put_s: list[float] = [0.0]

    def put(self, value: Any) -> Any:
        began = time.perf_counter()
        reference = ray.put(value)
        self.put_s[-1] += time.perf_counter() - began
        return reference

    def step(self) -> None:
        times = self.process.cpu_times()
        used = self.process.memory_info()
        self.memory.append(float(used.rss - used.shared))  # what it maps of the object store is not its own
        self.cpu.append(times.user + times.system)
        self.moments.append(time.monotonic())
        self.put_s.append(0.0)


async def play(run: RunDir, pool: Any, learn_s: float) -> tuple[Watched, Sequence[Mapping[str, Any]]]:
    watched = Watched()
    learning = learners_of(run, SyntheticLearnerGroup, publish=False)
    learning.learn_s = learn_s
    with run.console.stage("rl", run.config.rl.steps) as stage:
        async with learning:
            loop = Reinforcement(run, pool, learning, stage, put=watched.put)
            with frozen_gc():
                async for event in learning.events():
                    match event:
                        case Started():
                            await loop.start(event)
                        case Stepped():
                            await loop.stepped(event)
                            watched.step()
                        case Finished():
                            await loop.caught_up(event)
            loop.close()
    return watched, read_metrics(run.folder / "metrics.jsonl")


async def one(folder: Path, model: Path, console: Console, config: Recipe, learn_s: float) -> Any:
    run = RunDir(config, console)
    run.prepare()
    launch = launcher(
        SyntheticEngine,
        config.placement,
        ExecutorActor(dict, ExecutorConfig(), {"num_cpus": 0}),
        str(model),
        config=config.engine,
        agent=config.agent,
        reward=config.rl.reward,
        seed=0,
    )
    pool = EnginePool(launch, config.pool, config.agent, places=places_of(config), patience_s=60.0)
    pool.add()
    try:
        await pool.ready()
        return await play(run, pool, learn_s)
    finally:
        await pool.stop()
        run.close()


def overheads(watched: Watched, records: Sequence[Mapping[str, Any]], learn_s: float) -> Figures:
    """Of the steps behind the second, when a batch waits; of the driver without the last, which no episodes follow."""
    wall, steps = watched.moments[-1] - watched.moments[1], len(records) - 2
    driver_s = watched.cpu[-2] - watched.cpu[1]
    return {
        "overhead": 1 - steps * learn_s / wall,
        **{name: median(record[name] for record in records[2:]) for name in ("order_s", "fetch_s", "pack_s")},
        "driver_cpu": driver_s / (watched.moments[-2] - watched.moments[1]),
        "driver_cpu_s": driver_s / (steps - 1),
        "put_s": median(watched.put_s[2:-1]),
        "step_s": wall / steps,
    }


def growth(memory: Sequence[float], trajectories: int) -> Figures:
    """memory: bytes at each step; trajectories: of a step. The last quarter is compared with the second, by their
    medians: what a step has under way at the moment of looking is no growth."""
    quarter = len(memory) // 4
    before, after = median(memory[quarter : 2 * quarter]), median(memory[-quarter:])
    between = trajectories * (len(memory) - quarter / 2 - 1.5 * quarter)
    return {
        "driver_mb": after / 2**20,
        "growth_bytes": (after - before) / between,
        "growth": (after - before) / between / BYTES,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="a tenth of the trajectories")
    smoke = parser.parse_args().smoke
    began = time.monotonic()
    groups, steps, learn_s = (13, 5, LEARN_S / 10) if smoke else (125, 5, LEARN_S)
    small, many = (4, 12) if smoke else (8, 120)
    with tempfile.TemporaryDirectory() as temporary:
        folder, model = Path(temporary), Path(temporary, "model")
        make_model(model)
        with open_console(folder / "driver.log") as console, session(SessionConfig(object_store_gib=2.0)):
            large = settings(folder / "large", groups, steps)
            watched, records = asyncio.run(one(folder, model, console, large, learn_s))
            figures = overheads(watched, records, learn_s)
            watched, _ = asyncio.run(one(folder, model, console, settings(folder / "small", small, many), 0.0))
    figures |= growth(watched.memory, small * GROUP)
    figures["took_s"] = time.monotonic() - began
    report("data" + "_smoke" * smoke, figures, TARGETS)


if __name__ == "__main__":
    main()
