"""Evaluations on held-out tasks at intervals during RL.

    publish v --> due? --> a few tasks at a time, greedily, on the running engines --> one record, at step v

The tasks are a small sample that is the same each time. An evaluation runs beside the loop and takes a bounded number
of places, so that neither admission, nor a batch, nor new weights wait for it. Weights may change while it runs; its
record has the oldest and the newest version.
"""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

from actors.rollout.config import SamplingConfig
from cluster.pool import Evaluator
from coa.agent.records import EpisodeRecord
from coa.concurrency import Work
from coa.errors import InfrastructureError
from coa.json_object import JsonView
from coa.reporting.metrics import read_metrics
from coa.storage.files import write_atomically
from coa.types import ENVIRONMENT, Status, Task
from jobs.recipe.worlds import sample
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.rl_stats import STAGE

PLACES = 8
"""Tasks that are attempted at the same time."""
SCORE = "eval/pass_at_1"
GREEDY = SamplingConfig(temperature=0.0)

Emit = Callable[[int, JsonView], None]
"""Records a step and its measurements."""


def due(version: int, last: int, every: int) -> bool:
    """Whether a multiple of `every` lies in (last, version]; -1 stands for no evaluation yet. Never if
    `every` is 0."""
    return every > 0 and version // every > last // every


def measure(tasks: Sequence[Task], episodes: Sequence[EpisodeRecord], seconds: float) -> dict[str, float]:
    """A record of one greedy episode for each task; docs/run_directory.md says what each is."""
    families: dict[str, list[bool]] = defaultdict(list)
    for task, episode in zip(tasks, episodes, strict=True):
        families[task.family].append(episode.correct)
    sampled = [episode for episode in episodes if episode.newest != ENVIRONMENT]
    versions = (
        {
            "eval/oldest_version": min(episode.oldest for episode in sampled),
            "eval/newest_version": max(episode.newest for episode in sampled),
        }
        if sampled
        else {}
    )
    return {
        SCORE: fmean(episode.correct for episode in episodes),
        **{f"eval/{family}": fmean(correct) for family, correct in sorted(families.items())},
        "eval/tasks": len(tasks),
        "eval/well_formed": fmean(episode.well_formed for episode in episodes),
        "eval/truncated_fraction": fmean(episode.status is Status.TRUNCATED for episode in episodes),
        **versions,
        "eval/seconds": seconds,
    }


class HeldOut:
    """Runs at most one evaluation at a time; one that becomes due meanwhile begins with the next version after it."""

    def __init__(
        self,
        run: RunDir,
        pool: Evaluator,
        spawn: Callable[[Work[None]], asyncio.Task[None]],
        emit: Emit,
        places: int = PLACES,
    ) -> None:
        config = run.config.rl
        self._run, self._pool, self._spawn, self._emit = run, pool, spawn, emit
        self._every = config.evaluate_every
        self._tasks = sample(run.evaluation_tasks(), config.evaluate_tasks) if config.evaluate_every else ()
        self._places = asyncio.Semaphore(places)
        self._under_way: asyncio.Task[None] | None = None
        self._last = -1
        self._scores: dict[int, float] = {}

    def start(self, version: int) -> None:
        """Called when the engines are at `version`, at the start of the run or after a restart. Recorded evaluations
        stay; an interrupted one is repeated."""
        if self._under_way is not None:
            self._under_way.cancel()
            self._under_way = None
        if self._every:
            records = read_metrics(self._run.folder / "metrics.jsonl")
            steps = (r["step"] for r in records if r["stage"] == STAGE and (SCORE in r or "eval/failed" in r))
            self._last = max(steps, default=-1)
            self._write_scores({r["step"]: r[SCORE] for r in records if r["stage"] == STAGE and SCORE in r})
        self.reached(version)

    def reached(self, version: int) -> None:
        """Called when the engines run `version`; begins an evaluation if one is due, and returns at once."""
        busy = self._under_way is not None and not self._under_way.done()
        if not busy and due(version, self._last, self._every):
            self._last = version
            self._under_way = self._spawn(self._evaluate(version))

    async def finish(self) -> None:
        """Returns when no evaluation is under way."""
        if self._under_way is not None:
            await asyncio.wait({self._under_way})

    async def _evaluate(self, version: int) -> None:
        began = time.monotonic()
        try:
            episodes = await self._attempt_all()
        except* InfrastructureError as failed:
            error = failed.exceptions[0]
            self._emit(version, {"eval/failed": f"{type(error).__name__}: {error}"})
            self._run.console.say(
                f"held-out tasks at version {version}: not evaluated, {type(error).__name__}: {error}"
            )
        else:
            record = measure(self._tasks, episodes, time.monotonic() - began)
            self._emit(version, record)
            self._write_scores({**self._scores, version: record[SCORE]})
            right = f"{record[SCORE]:.1%} of {len(self._tasks)}"
            self._run.console.say(f"held-out tasks at version {version}: {right} right, greedily")

    def _write_scores(self, scores: dict[int, float]) -> None:
        """Notes the evaluated versions for the one that removes checkpoints, if the best one is to stay."""
        self._scores = scores
        if self._run.config.checkpoints.keep_best:
            write_atomically(self._run.scores, json.dumps(scores))

    async def _attempt_all(self) -> list[EpisodeRecord]:
        """Episodes in the tasks' order; raises a group of InfrastructureErrors that remain after the pool's retries."""
        async with asyncio.TaskGroup() as group:
            attempts = [group.create_task(self._attempt(task)) for task in self._tasks]
        return [attempt.result() for attempt in attempts]

    async def _attempt(self, task: Task) -> EpisodeRecord:
        async with self._places:
            [episode] = await self._pool.evaluate(task, range(1), GREEDY)
        return episode
