"""Runs the attempts of an evaluation, with the number of samples and the temperature that its plan gives for each task,
and computes pass rates."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from actors.rollout.config import SamplingConfig
from cluster.pool import Evaluator
from coa.json_object import Json
from coa.reporting.statistics import pass_at_1
from coa.tasks.published.benchmark import GREEDY, Benchmark, Decoding, decoding_of
from coa.tasks.published.table import of_family
from coa.tasks.samples import COUNT, with_sample_tests_only
from coa.tasks.worlds import World
from coa.types import Task
from jobs.evaluation.journal import Episodes, Journal, Plan
from jobs.recipe.schema import EvaluationConfig
from jobs.run.console import Stage
from jobs.run.trajectories import write_episodes


def decoding(config: EvaluationConfig, benchmark: Benchmark | None = None) -> Decoding:
    return decoding_of(
        benchmark,
        samples=config.samples,
        temperature=config.temperature,
        top_p=config.top_p,
        top_k=config.top_k,
        max_turns=config.max_turns,
    )


def both(config: EvaluationConfig) -> tuple[Decoding, ...]:
    """One greedy attempt and several sampled ones: how the stages of a run are compared, for all kinds of tasks."""
    sampled = decoding(config)
    greedy = replace(GREEDY, max_turns=config.max_turns)
    return (greedy, sampled) if sampled.temperature else (greedy,)


def by_protocol(config: EvaluationConfig, task: Task) -> tuple[Decoding, ...]:
    """A benchmark's own protocol for its tasks, and `both` for any other task."""
    benchmark = of_family(task.family)
    return (decoding(config, benchmark),) if benchmark else both(config)


async def attempt_all(
    pool: Evaluator, tasks: Sequence[Task], plan: Plan, stage: Stage, journal: Journal
) -> tuple[Episodes, Episodes]:
    """Returns greedy and sampled episodes; attempts in the journal are not repeated. Raises the InfrastructureError
    that remains after the pool's retries."""
    greedy, sampled = journal.greedy, journal.sampled

    async def attempt(task: Task, how: Decoding) -> None:
        sampling = SamplingConfig(temperature=how.temperature, top_p=how.top_p, top_k=how.top_k)
        episodes = await pool.evaluate(task, range(how.samples), sampling, how.max_turns)
        journal.add(task.id, episodes, greedy=not how.temperature)
        done = len(greedy) + len(sampled)
        stage.update(done)
        if done % 20 == 0:
            episodes = chain(*greedy.values(), *sampled.values())
            stage.update(correct=round(fmean(episode.correct for episode in episodes), 3))

    async with asyncio.TaskGroup() as group:
        for task in tasks:
            for how in plan[task.id]:
                if task.id not in (sampled if how.temperature else greedy):
                    group.create_task(attempt(task, how))
    stage.update(len(greedy) + len(sampled))
    return greedy, sampled


def measure(tasks: Sequence[Task], greedy: Episodes, sampled: Episodes, world: World) -> Json:
    """Pass rates of all tasks and of each family, the world's own measures, and the share of episodes with form errors.

    A pass rate, greedy or sampled, is present only if every task has such episodes. All other figures are computed from
    the sampled episodes, or from the greedy one if a task has no sampled ones; `counted` says how many these are.
    `sample_tests_only` is present only if tasks have no other tests.
    """
    counted = greedy | sampled
    families: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        families[task.family].append(task)

    def rates(some: Sequence[Task]) -> Json:
        measured = {
            key: pass_at_1([[e.correct for e in episodes[task.id]] for task in some])
            for key, episodes in (("pass_at_1", sampled), ("greedy", greedy))
            if all(task.id in episodes for task in some)
        }
        samples = len(with_sample_tests_only(some))
        return {"n": len(some), **measured, **({COUNT: samples} if samples else {})}

    every = [episode for task in tasks for episode in counted[task.id]]
    return {
        **rates(tasks),
        "families": {name: rates(some) for name, some in families.items()},
        **world.measures(tasks, {task.id: [episode.text for episode in counted[task.id]] for task in tasks}),
        "counted": {
            "sampled": sum(map(len, sampled.values())),
            "greedy": sum(len(found) for id, found in greedy.items() if id not in sampled),
        },
        "format_errors": fmean(not episode.well_formed for episode in every),
        "repairs": dict(Counter(what for episode in every for what in episode.repairs)),
        "statuses": dict(Counter(episode.status.value for episode in every)),
    }


def write_evaluation(path: Path, tasks: Sequence[Task], greedy: Episodes, sampled: Episodes) -> None:
    rows = [
        (task, mode, episode)
        for mode, found in (("greedy", greedy), ("sampled", sampled))
        for task in tasks
        for episode in found.get(task.id, ())
    ]
    write_episodes(path, rows)
