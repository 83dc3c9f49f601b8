"""Runs of the recipe `bench_loop`: its policy, fine-tuned once, and stages of reinforcement from there on, many on the
same engines."""

import asyncio
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

from actors.tools.remote import ToolClient
from benchmarks.speed import tools
from benchmarks.tiny_runs import RUNS, coa
from cluster.pool import EnginePool
from coa.config import load
from coa.learning.orders import Train
from coa.learning.window import Ticket
from coa.reporting.metrics import read_metrics
from jobs.recipe.schema import Recipe
from jobs.run.console import Console, open_console
from jobs.run.run_dir import RunDir
from jobs.stages.engines import engine_pool
from jobs.stages.reinforcement.groups import play_group
from jobs.stages.reinforcement.replay import learning_of, plan_replay
from jobs.stages.rl import rl
from jobs.stages.services import tool_client

RECIPE = Path(__file__).parent / "bench_loop.yaml"
STAGE = "rl"
Found = TypeVar("Found")
STILL = "rl.learner.optimizer.lr=0"
"""The policy stays as it is, so that every side plays and learns the same episodes."""
QUICK = ("distill.runs=3000", "distill.keep=2000", "sft.steps=60")
"""Of a policy for smoke runs: its episodes are as long, and mostly wrong."""


@dataclass(frozen=True)
class Latency:
    """Seconds of a tool call: log-normal; 0 is at once."""

    median_s: float = 0.0
    p99_s: float = 0.0
    seed: int = 0


AT_ONCE, SLOW = Latency(), Latency(0.3, 3.0)


def policy(*, smoke: bool) -> Path:
    """The run directory of the fine-tuned policy, made where it is not there."""
    folder = RUNS / ("bench_smoke" if smoke else "bench_loop")
    if not (folder / "checkpoints" / "sft.json").exists():
        words = ["--recipe", str(RECIPE), f"run_dir={folder}", *(QUICK if smoke else ())]
        coa("distill", *words)
        coa("sft", *words)
    return folder


def recipe(folder: Path, *overrides: str) -> Recipe:
    return load(Recipe, RECIPE, (f"run_dir={folder}", *overrides))


def fresh(start: Path, config: Recipe, console: Console) -> RunDir:
    """A run that stands where `start` stood after fine-tuning."""
    run = RunDir(config, console)
    shutil.rmtree(run.folder, ignore_errors=True)
    run.prepare()
    for name in ("tokenizer", "start", "sft-model"):
        shutil.copytree(start / "checkpoints" / name, run.checkpoints / name)
    shutil.copy(start / "checkpoints" / "sft.json", run.checkpoints)
    return run


@contextmanager
def ray_session(folder: Path) -> Iterator[Console]:
    """Ray, whose processes know the benchmarks' tool; what libraries print goes to a file of the folder."""
    from cluster.session import SessionConfig, session

    os.environ["COA_EXTENSIONS"] = tools.EXTENSION
    os.environ[tools.VARIABLE] = str(folder / "tools.json")
    with open_console(folder / "logs" / "driver.log") as console, session(SessionConfig(object_store_gib=2.0)):
        yield console


@dataclass(frozen=True)
class Bench:
    """Engines and tools that wait for work."""

    folder: Path
    start: Path
    console: Console
    pool: EnginePool
    tools: ToolClient
    base: tuple[str, ...]
    """Overrides of the recipe that all of its runs have."""

    def recipe(self, name: str, *overrides: str) -> Recipe:
        return recipe(self.folder / name, *self.base, *overrides)

    def run_dir(self, config: Recipe) -> RunDir:
        return RunDir(config, self.console)

    async def run(self, name: str, *overrides: str) -> "Ran":
        """The stage of reinforcement, from the fine-tuned policy on."""
        config = self.recipe(name, *overrides)
        with closing(fresh(self.start, config, self.console)) as run:
            result = await rl(run, self.pool, self.tools)
            records = [one for one in read_metrics(run.folder / "metrics.jsonl") if one["stage"] == STAGE]
        return Ran(config, run.folder, records, result)

    async def rewards(self, tasks: int, attempts: int) -> list[float]:
        """The mean reward on each of the held-out tasks under the weights that the engines have."""
        config = self.recipe("engines", f"evaluation.tasks={tasks}")
        held_out = self.run_dir(config).evaluation_tasks()
        play = (self.pool.evaluate(task, range(attempts), config.rl.sampling) for task in held_out)
        return [fmean(episode.reward for episode in episodes) for episodes in await asyncio.gather(*play)]

    async def engines_alone(self, groups: range, at_once: int) -> list[float]:
        """When each of these groups had been played, at most `at_once` of them under way, without learners."""
        config = self.recipe("engines")
        run, room, ended = self.run_dir(config), asyncio.Semaphore(at_once), list[float]()

        async def one(number: int) -> None:
            async with room:
                task = run.training_task(STAGE, number)
                await play_group(self.pool, task, Ticket(number, 0), number, config.rl, config.agent)
                ended.append(time.monotonic())

        await asyncio.gather(*map(one, groups))
        return ended


@dataclass(frozen=True)
class Ran:
    """A finished stage of reinforcement."""

    config: Recipe
    folder: Path
    records: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any]


@asynccontextmanager
async def bench(folder: Path, start: Path, console: Console, latency: Latency, *overrides: str) -> AsyncIterator[Bench]:
    """overrides: of the recipe, for the engines and for every run on them."""
    (folder / "tools.json").write_text(json.dumps(asdict(latency)))
    first = fresh(start, recipe(folder / "engines", *overrides), console)
    async with tool_client(first) as tools, engine_pool(first, first.sft_model, tools) as pool:
        yield Bench(folder, start, console, pool, tools, overrides)


async def learners_alone(ran: Ran, console: Console) -> list[float]:
    """When each of a run's recorded batches was learnt again, from the same start, without engines: the learners of
    the stage, with publishing, and batches that wait in memory."""
    from actors.learner.buffer import Started, Stepped

    run, ended = RunDir(ran.config, console), list[float]()
    plan = plan_replay(run, None, None)
    plan.check()
    batches = [plan.store.read(version + 1) for version in range(plan.last)]
    own = run.folder / "replay"
    learning = learning_of(run, replace(plan, trajectories=plan.trajectories[:1]), own)
    async with learning:
        async for event in learning.events():
            match event:
                case Started():
                    learning.spawn(feed(learning, batches, event.epoch))
                case Stepped():
                    ended.append(time.monotonic())
    shutil.rmtree(own, ignore_errors=True)
    return ended


async def feed(learning: Any, batches: Sequence[Any], epoch: int) -> None:
    import ray

    for version, dealt in enumerate(batches):
        shares = tuple((ray.put(tuple(share)),) for share in dealt)
        await learning.put(Train(version=version, shares=shares, cursor=0), epoch)


def measured(name: str, smoke: bool, body: Callable[[Path, Path, Console], Coroutine[Any, Any, Found]]) -> Found:
    """What `body(folder, policy, console)` gives, within a session of Ray; its runs lie in `runs/bench/NAME`."""
    start = policy(smoke=smoke)
    folder = RUNS / "bench" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with ray_session(folder) as console:
        return asyncio.run(body(folder, start, console))
