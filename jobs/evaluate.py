"""Evaluation: greedy and sampled pass@1 with intervals, by family and by strategy, and what a success costs.

`coa evaluate --model DIR --tasks FILE` measures any model on a user's file; `coa train` measures its own stages on
held-out tasks. The denominator is the number of tasks: what is cut off, malformed or too long counts as wrong.
"""

import asyncio
import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from actors.engine import SamplingConfig
from coa.codec import Codec
from coa.errors import InfrastructureError, UserError
from coa.files import write_atomically
from coa.grammar import OBSERVATION, parse
from coa.profiles import profile as find_profile
from coa.rewards import GRADERS
from coa.rollout import AgentConfig, EpisodeRecord
from coa.statistics import Cost, cost_per_success, pass_at_1, token_reduction
from coa.tasks import load_tasks
from coa.teachers.run import Assignment
from coa.teachers.strategy import careful_route, strategy_of
from coa.teachers.transcript import AgentStep, ToolStep, Transcript, prompt_of
from coa.types import Task
from coa.world import World
from jobs.agent_file import agent_of
from jobs.console import Console, Stage
from jobs.recipe import Recipe
from jobs.run import Run, check_counts, in_session
from jobs.trajectories import write_episodes

Episodes = dict[str, tuple[EpisodeRecord, ...]]
"""By task id."""


def check(config: Recipe, *, model: Path, tasks: Path, rows: int | None, out: Path) -> None:
    if not (model / "config.json").is_file():
        raise UserError(f"{model}: no model there (no config.json)")
    loaded = load_tasks(tasks, profile=config.tasks.profile)[:rows]
    for grader in sorted({task.grader for task in loaded} - GRADERS.keys()):
        raise UserError(f"{tasks}: tasks graded by {grader!r} can't be graded; known are {', '.join(GRADERS)}")
    agent_of(model, config.agent)
    Codec.load(model)
    check_counts(config)


def run(config: Recipe, console: Console, *, model: Path, tasks: Path, rows: int | None, out: Path) -> None:
    from cluster.resources import engine_demands
    from jobs.engines import engine_pool
    from jobs.services import tool_executors

    loaded = load_tasks(tasks, profile=config.tasks.profile)[:rows]

    async def body(run: Run) -> None:
        async with (
            tool_executors(run) as executors,
            engine_pool(run, model.resolve(), executors) as pool,
        ):
            with console.stage("evaluate", len(loaded) * 2) as stage:
                greedy, sampled = await attempt_all(run, pool, loaded, stage)
        found = {"tasks": str(tasks), "model": str(model), **measure(loaded, greedy, sampled)}
        write_evaluation(run.folder / "episodes.parquet", loaded, greedy, sampled)
        write_atomically(run.folder / "evaluation.json", json.dumps(found, indent=2))
        console.table(
            f"{model} on {tasks}",
            ["", "tasks", "greedy", "sampled pass@1"],
            [
                [name, part["greedy"]["n"], show(part["greedy"]), show(part["pass_at_1"])]
                for name, part in (("all", found), *found["families"].items())
            ],
        )
        console.say(f"form errors {found['format_errors']:.1%}; details in {run.folder}")

    agent = agent_of(model, config.agent)
    as_asked = replace(config, run_dir=str(out), agent=agent)
    in_session(as_asked, console, body, demands=[engine_demands(config.placement)])


def show(estimate: Any) -> str:
    low, high = estimate["ci95"]
    return f"{estimate['mean']:.3f}  [{low:.3f}, {high:.3f}]"


async def attempt_all(run: Run, pool: Any, tasks: Sequence[Task], stage: Stage) -> tuple[Episodes, Episodes]:
    """Each task once greedily and `evaluation.samples` times sampled, all at once."""
    config = run.config.evaluation
    greedy: Episodes = {}
    sampled: Episodes = {}

    async def attempt(into: Episodes, task: Task, samples: Sequence[int], sampling: SamplingConfig) -> None:
        into[task.id] = await pool.evaluate(task, samples, sampling)
        done = len(greedy) + len(sampled)
        stage.update(
            done, correct=round(fmean(e.correct for found in (greedy, sampled) for es in found.values() for e in es), 3)
        ) if done % 20 == 0 else None

    hot = SamplingConfig(temperature=config.temperature, top_p=config.top_p)
    async with asyncio.TaskGroup() as group:
        for task in tasks:
            group.create_task(attempt(greedy, task, [0], SamplingConfig(temperature=0.0)))
            group.create_task(attempt(sampled, task, range(config.samples), hot))
    stage.update(2 * len(tasks))
    return greedy, sampled


def measure(tasks: Sequence[Task], greedy: Episodes, sampled: Episodes) -> dict[str, Any]:
    """Pass rates of all tasks and of each family, strategies, and the share of sampled episodes with a form error."""
    families: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        families[task.family].append(task)

    def rates(some: Iterable[Task]) -> dict[str, Any]:
        some = list(some)
        return {
            "greedy": pass_at_1([[e.correct for e in greedy[t.id]] for t in some]),
            "pass_at_1": pass_at_1([[e.correct for e in sampled[t.id]] for t in some]),
        }

    every = [episode for task in tasks for episode in sampled[task.id]]
    return {
        **rates(tasks),
        "families": {name: rates(some) for name, some in families.items()},
        "strategies": {name: strategies(name, some, sampled) for name, some in families.items()},
        "format_errors": fmean(not episode.well_formed for episode in every),
        "statuses": dict(Counter(episode.status.value for episode in every)),
    }


def strategies(family: str, tasks: Sequence[Task], sampled: Episodes) -> dict[str, float]:
    """The share of sampled episodes that took each route."""
    routes = Counter(strategy_of(parse(e.text).chain, family) for task in tasks for e in sampled[task.id])
    return {name: routes[name] / routes.total() for name in ("careful", "lazy", "other")}


def write_evaluation(path: Path, tasks: Sequence[Task], greedy: Episodes, sampled: Episodes) -> None:
    rows = [
        (task, mode, episode)
        for mode, found in (("greedy", greedy), ("sampled", sampled))
        for task in tasks
        for episode in found[task.id]
    ]
    write_episodes(path, rows)


async def evaluate_stage(run: Run, pool: Any, name: str, model: Path) -> dict[str, Any]:
    """Measures what a stage made; returns its result, at once if it is finished already."""
    if done := run.result(f"evaluation-{name}"):
        return done
    tasks = run.evaluation_tasks()
    with run.console.stage(f"evaluate {name}", 2 * len(tasks)) as stage:
        greedy, sampled = await attempt_all(run, pool, tasks, stage)
        found = measure(tasks, greedy, sampled)
        if run.config.tasks.path is None:
            found["careful_success"] = await careful_success(
                run.world, pool, Codec.load(model), tasks, run.config.agent
            )
        write_evaluation(run.trajectories / f"evaluation-{name}.parquet", tasks, greedy, sampled)
        stage.update(2 * len(tasks), greedy=found["greedy"]["mean"], sampled=found["pass_at_1"]["mean"])
    attempts = [(task.family, episode) for task in tasks for episode in sampled[task.id]]
    found["cost"] = {
        family: asdict_cost([e for f, e in attempts if family in ("all", f)])
        for family in ("all", *sorted({task.family for task in tasks}))
    }
    return run.finish(f"evaluation-{name}", found)


def asdict_cost(episodes: Sequence[EpisodeRecord]) -> Cost:
    return cost_per_success(
        [e.tokens_sent for e in episodes], [len(e.tool_calls) for e in episodes], [e.correct for e in episodes]
    )


async def careful_success(
    world: World, pool: Any, codec: Codec, tasks: Sequence[Task], agent: AgentConfig
) -> dict[str, float]:
    """By family, the mean P(success | careful route): the probability of the policy's tokens of the careful chain,
    forced one after the other, without those of the spans that decide for the route."""

    async def probability(task: Task) -> float:
        profile = find_profile(task.profile)
        route = careful_route(world, task)
        prompt = codec.prompt(profile, task.question, instructed=agent.instructed).tolist()
        pieces = [codec.span(span) for span in route.chain]
        counted = np.concatenate(
            [np.zeros(len(prompt), bool)]
            + [
                np.full(len(ids), span.tag != OBSERVATION and index not in route.decisions)
                for index, (span, ids) in enumerate(zip(route.chain, pieces, strict=True))
            ]
        )
        token_ids = np.concatenate([prompt, *pieces]).astype(np.int32)
        logprobs = await pool.logprobs(token_ids)
        return float(np.exp(logprobs[counted[1:]].sum()))

    found = await asyncio.gather(*(probability(task) for task in tasks))
    families: dict[str, list[float]] = defaultdict(list)
    for task, value in zip(tasks, found, strict=True):
        families[task.family].append(value)
    return {name: fmean(values) for name, values in families.items()}


async def team_cost(run: Run, executor: Any) -> dict[str, Cost]:
    """What a success costs the team on the evaluation tasks: over all its agents' calls, the prompt that was sent plus
    the reply, counted with the policy's tokenizer. By family, and "all"."""
    if done := run.result("team-cost"):
        return done  # pyright: ignore[reportReturnType]
    from actors.teacher import start_team
    from coa.teachers.experts import scripted_mind

    config = run.config
    tasks = run.evaluation_tasks()
    team = start_team(
        functools.partial(scripted_mind, config.world, config.experts), executor, config.team, seed=config.seed
    )
    wave = await team.run([Assignment(task) for task in tasks])
    team.stop()
    if wave.given_up:
        raise InfrastructureError(f"the teachers' tools are down: {wave.given_up[0].why}")
    codec = Codec.load(run.start_model)
    spent: dict[str, list[tuple[int, int, bool]]] = defaultdict(list)
    for transcript in wave.transcripts:
        task = transcript.task
        row = (
            tokens_of(transcript, codec),
            calls_of(transcript),
            GRADERS[task.grader](transcript.answer, task.answers),
        )
        spent[task.family].append(row)
        spent["all"].append(row)
    costs = {family: cost_per_success(*map(list, zip(*rows, strict=True))) for family, rows in spent.items()}
    return run.finish("team-cost", costs)  # pyright: ignore[reportReturnType]


def tokens_of(transcript: Transcript, codec: Codec) -> int:
    texts: list[str] = []
    for index, step in enumerate(transcript.steps):
        if isinstance(step, AgentStep):
            texts.extend(message.content for message in prompt_of(transcript, index).messages)
            texts.append(step.output)
    return codec.count(texts)


def calls_of(transcript: Transcript) -> int:
    return sum(isinstance(step, ToolStep) for step in transcript.steps)


__all__ = ["evaluate_stage", "team_cost", "token_reduction"]
