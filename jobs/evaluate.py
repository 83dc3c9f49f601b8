"""Evaluation: a benchmark's metric, greedy and sampled pass@1 with intervals, and what a success costs.

`coa evaluate --model DIR --tasks aime24` measures any model on a published benchmark or a user's file; `coa train`
measures its own stages on held-out tasks. The denominator is the number of tasks: what is cut off, malformed or too
long counts as wrong. A tool or a judge that is down ends the evaluation.
"""

import asyncio
import functools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from coa.benchmarks.benchmark import Decoding
from coa.benchmarks.results import results
from coa.benchmarks.results import show as show_decoding
from coa.codec import Codec
from coa.episode import AgentConfig
from coa.files import write_atomically
from coa.graders import TESTS, check_graders
from coa.grammar import OBSERVATION
from coa.profiles import profile as find_profile
from coa.readable import DASH
from coa.rewards import graders_of
from coa.rollout import EpisodeRecord
from coa.statistics import Cost, cost_per_success
from coa.tasks import load
from coa.teachers.strategy import careful_route
from coa.tools.base import PLAIN
from coa.tools.layouts import layout_of
from coa.tools.sandbox import require_bubblewrap
from coa.tools.standard import check_called, check_tools, tiny_world_tools
from coa.types import Task
from coa.world import World
from jobs.agent_file import agent_of
from jobs.attempts import attempt_all, both, by_protocol, decoding, measure, write_evaluation
from jobs.console import Console
from jobs.journal import Journal, evaluation_of
from jobs.recipe import Recipe
from jobs.run import Run, check_counts, in_session


def check(
    config: Recipe, *, model: Path, tasks: str, rows: int | None, out: Path, overrides: Sequence[str] = ()
) -> None:
    agent_of(model, config.agent, overrides)
    check_attempts(model, load(tasks, profile=config.tasks.profile, grader=config.tasks.grader, rows=rows), config)


def check_attempts(model: Path, tasks: Sequence[Task], config: Recipe) -> None:
    """Raises UserError where a model can't attempt tasks."""
    check_needs(tasks, config)
    Codec.load(model)
    check_counts(config)


def check_needs(tasks: Sequence[Task], config: Recipe) -> None:
    """Raises UserError where what tasks or tools need is not set up: a judge, a key, the sandbox for programs."""
    check_tools(config.tools, crawl_s=config.executor.limit_s("crawl_page"), named=config.executor.named)
    graders = {task.grader for task in tasks} | graders_of(config.rl.reward)
    check_graders(graders, config.tools, config.executor.limit_s)
    tools = {tag.name for name in {task.profile for task in tasks} for tag in find_profile(name).tools}
    check_called(tools)
    if "code" in tools or any(task.grader == TESTS for task in tasks):
        require_bubblewrap(config.tools.sandbox)


def run(
    config: Recipe,
    console: Console,
    *,
    model: Path,
    tasks: str,
    rows: int | None,
    out: Path,
    overrides: Sequence[str] = (),
) -> None:
    from cluster.resources import engine_demands
    from jobs.engines import engine_pool
    from jobs.services import tool_counts, tool_executors

    loaded = load(tasks, profile=config.tasks.profile, grader=config.tasks.grader, rows=rows)
    plan = {task.id: by_protocol(config.evaluation, task) for task in loaded}
    count = sum(map(len, plan.values()))

    async def body(run: Run) -> None:
        with Journal(run.folder / "attempts.jsonl", evaluation_of(model, loaded, plan, run.config)) as journal:
            if before := len(journal.greedy) + len(journal.sampled):
                console.say(f"{before} of {count} attempts are there already, in {run.folder}")
            async with (
                tool_executors(run) as executors,
                engine_pool(run, model.resolve(), executors) as pool,
            ):
                with console.stage("evaluate", count) as stage:
                    greedy, sampled = await attempt_all(pool, loaded, plan, stage, journal)
                tools = await tool_counts(executors)
            found = {
                "tasks": tasks,
                "model": str(model),
                "benchmarks": results(
                    loaded,
                    greedy | sampled,
                    functools.partial(decoding, config.evaluation),
                    first_rows=rows is not None and len(loaded) == rows,
                    tiny_world=tiny_world_tools(config.tools),
                ),
                **measure(loaded, greedy, sampled),
                "tools": tools,
            }
            write_evaluation(run.folder / "episodes.parquet", loaded, greedy, sampled)
            write_atomically(run.folder / "evaluation.json", json.dumps(found, indent=2))
        tell(console, f"{model} on {tasks}", found)
        console.say(f"form errors {found['format_errors']:.1%}; details in {run.folder}")

    agent = agent_of(model, config.agent, overrides)
    as_asked = replace(config, run_dir=str(out), agent=agent)
    in_session(as_asked, console, body, demands=[engine_demands(config.placement)])


def tell(console: Console, title: str, found: dict[str, Any]) -> None:
    """The benchmarks' results; then those by family, where these say more."""
    benchmarks, families = found["benchmarks"], found["families"]
    if benchmarks:
        console.table(title, ["benchmark", "metric", "", "tasks", "attempts"], list(rows_of(benchmarks)))
    for name, result in benchmarks.items():
        for warning in result["warnings"]:
            console.say(f"{name}: {warning}")
    if len(families) > len(benchmarks):
        console.table(
            title,
            ["", "tasks", "greedy", "sampled pass@1"],
            [
                [name, part["pass_at_1"]["n"], show(part.get("greedy")), show(part["pass_at_1"])]
                for name, part in (("all", found), *families.items())
            ],
        )


def rows_of(benchmarks: dict[str, dict[str, Any]]) -> Iterator[list[object]]:
    """A benchmark's metric first, then what else its samples say."""
    for name, result in benchmarks.items():
        how = Decoding(**result["decoding"])
        yield [name, result["metric"], show(result), result["n"], show_decoding(how)]
        if how.samples > 1:
            yield ["", f"pass@{how.samples}", show(result["pass_at_k"][str(how.samples)]), "", ""]
        if "majority_at_k" in result:
            yield ["", f"majority@{how.samples}", show(result["majority_at_k"]), "", ""]


def show(estimate: Any) -> str:
    if estimate is None:
        return DASH
    low, high = estimate["ci95"]
    return f"{estimate['mean']:.3f}  [{low:.3f}, {high:.3f}]"


async def evaluate_stage(run: Run, pool: Any, name: str, model: Path) -> dict[str, Any]:
    """Measures what a stage made; returns its result, at once if it is finished already."""
    if done := run.result(f"evaluation-{name}"):
        return done
    tasks = run.evaluation_tasks()
    plan = dict.fromkeys((task.id for task in tasks), both(run.config.evaluation))
    evaluation = evaluation_of(model, tasks, plan, run.config)
    with (
        Journal(run.trajectories / f"evaluation-{name}.jsonl", evaluation) as journal,
        run.console.stage(f"evaluate {name}", 2 * len(tasks)) as stage,
    ):
        greedy, sampled = await attempt_all(pool, tasks, plan, stage, journal)
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

    # The careful chains are written in this layout alone.
    tasks = [task for task in tasks if layout_of(task.id, agent.layouts) == PLAIN]

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
