"""Evaluation: a benchmark's metric, greedy and sampled pass@1 with intervals, and the cost per success.

`coa evaluate --model DIR --tasks aime24` measures any model on a published benchmark or a user's file; `coa train`
measures its own stages on held-out tasks. The denominator is the number of tasks: a truncated, malformed or too long
answer counts as wrong. A tool or a judge that is down for longer than `evaluation.patience_s` ends the evaluation.
"""

import asyncio
import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from actors.tools.remote import ToolClient
from cluster.pool import EnginePool
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig, Grammar
from coa.agent.records import EpisodeRecord
from coa.errors import UserError
from coa.grading.maths import MATHS, published_verdicts
from coa.json_object import Json
from coa.reporting.benchmarks import results
from coa.reporting.benchmarks import show as show_decoding
from coa.reporting.readable import DASH
from coa.reporting.statistics import Cost, cost_per_success
from coa.storage.files import write_atomically
from coa.storage.jsonl import to_json
from coa.tasks.loading import load
from coa.tasks.published.benchmark import Decoding
from coa.tasks.published.table import of_family
from coa.tasks.samples import result_name
from coa.types import Task
from jobs.evaluation.attempts import attempt_all, both, by_protocol, decoding, measure, write_evaluation
from jobs.evaluation.compared import EPISODES, MODES, differences, verdicts_in, verdicts_of
from jobs.evaluation.journal import Episodes, Journal, evaluation_of
from jobs.evaluation.scaling import compare_ways, show_ways
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import evaluation_tasks, world_of
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages.engines import engine_pool
from jobs.stages.services import made_up, tool_client, tool_counts
from jobs.stages.start import prepare_start

BASE = "base"
"""Name of the evaluation of a pretrained model before it is fine-tuned."""
MANY_MALFORMED = 0.5
"""Above this share of malformed episodes, the user is told which setting helps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Which tasks an evaluation attempts, and what it measures on them."""

    spec: str
    """Name of the tasks in messages and results."""
    tasks: tuple[Task, ...]
    first_rows: bool
    """Whether only the first rows are taken (`--rows`), so that there may be more."""
    of_world: bool
    """Whether they are tasks of the world that the tools' pages belong to."""
    best_of: bool
    """Whether ways to choose one of several attempts are compared, too (`--best-of`)."""


def evaluation_plan(config: Recipe, spec: str | None, rows: int | None, *, best_of: bool) -> EvaluationPlan:
    """The tasks that a user named; without a name, held-out tasks of the model's world.

    Raises UserError if there are none.
    """
    world = world_of(config)
    if spec is not None:
        tasks = load(spec, profile=config.tasks.profile, grader=config.tasks.grader, rows=rows)
    elif world.mistake():
        raise UserError("--tasks is needed: the model's training world has no tasks of its own (world.json)")
    else:
        tasks = evaluation_tasks(world, config.evaluation)[:rows]
    return EvaluationPlan(
        spec=spec or f"held-out tasks of the world {world.name}",
        tasks=tuple(tasks),
        first_rows=rows is not None and len(tasks) == rows,
        of_world=spec is None,
        best_of=best_of,
    )


async def evaluate_model(run: RunDir, model: Path, plan: EvaluationPlan, against: Path | None = None) -> None:
    """Attempts the tasks, writes the results to the run's folder, and shows them.

    against: the folder of another evaluation on these tasks, to compare with.
    """
    config, console, tasks = run.config, run.console, plan.tasks
    attempts = {task.id: by_protocol(config.evaluation, task) for task in tasks}
    count = sum(map(len, attempts.values()))
    with Journal(run.folder / "attempts.jsonl", evaluation_of(model, tasks, attempts, config)) as journal:
        if journal.notice:
            console.say(journal.notice)
        if before := len(journal.greedy) + len(journal.sampled):
            console.say(f"{before} of {count} attempts were made already, see {run.folder}")
        async with (
            tool_client(run, None if plan.of_world else {task.profile for task in tasks}) as tools,
            engine_pool(run, model.resolve(), tools) as pool,
        ):
            with console.stage("evaluate", count) as stage:
                greedy, sampled = await attempt_all(pool, tasks, attempts, stage, journal)
            published = await as_published(tasks, greedy | sampled)
            ways = await compare_ways(config, tools, tasks, greedy, sampled) if plan.best_of else None
            counts = await tool_counts(tools)
        found = {
            "tasks": plan.spec,
            "model": str(model),
            "benchmarks": await asyncio.to_thread(
                results,
                tasks,
                greedy | sampled,
                functools.partial(decoding, config.evaluation),
                first_rows=plan.first_rows,
                made_up=made_up(config.tools, run.world),
                published=published,
            ),
            **measure(tasks, greedy, sampled, run.world),
            **({} if ways is None else {"test_time": ways}),
            **({} if against is None else {"against": compared(against, tasks, greedy, sampled)}),
            "tools": counts,
        }
        write_evaluation(run.folder / EPISODES, tasks, greedy, sampled)
        write_atomically(run.folder / "evaluation.json", to_json(found, indent=2))
    show_results(console, f"{model} on {plan.spec}", found)
    if ways is not None:
        show_ways(console, f"one of {config.evaluation.samples} attempts, and the cost", ways)
    if against is not None:
        show_differences(console, found["against"])
    console.say(
        f"episodes without an answer, or with incorrect tags: {found['format_errors']:.1%}; details in {run.folder}"
    )
    if advice := advice_on_form(found["format_errors"], tasks, config.agent):
        console.say(advice)


async def as_published(tasks: Sequence[Task], episodes: Episodes) -> dict[str, list[int]]:
    """The verdicts of plain Math-Verify on answers to published problems of mathematics, by task id."""
    return {
        task.id: await published_verdicts([episode.answer for episode in episodes[task.id]], task)
        for task in tasks
        if task.grader == MATHS and of_family(task.family)
    }


def advice_on_form(malformed: float, tasks: Sequence[Task], agent: AgentConfig) -> str:
    """Names the setting that helps if more than half of the episodes are malformed; empty if fewer are."""
    if malformed <= MANY_MALFORMED:
        return ""
    begin = f"{malformed:.0%} of the episodes are malformed, so their pass rates measure form rather than skill: "
    if agent.grammar is Grammar.enforce:
        return (
            f"{begin}the grammar is enforced, but they end in the middle of a tag; a smaller "
            "agent.limits.max_tag_tokens closes each tag before the turn's tokens run out"
        )
    profiles = ", ".join(sorted({task.profile for task in tasks}))
    return (
        f"{begin}agent.grammar=enforce allows only the tags of the profile ({profiles}), and agent.limits."
        "max_tag_tokens limits their length; or the model was trained with another profile (tasks.profile)"
    )


def show_results(console: Console, title: str, found: Json) -> None:
    """Shows the results by benchmark, then by family if there are other families."""
    benchmarks, families = found["benchmarks"], found["families"]
    if benchmarks:
        console.table(title, ["benchmark", "metric", "", "tasks", "attempts"], list(rows_of(benchmarks)))
    for name, result in benchmarks.items():
        for warning in result["warnings"]:
            console.say(f"{name}: {warning}")
    if len(families) > len(benchmarks):
        parts = {"all": found, **families}
        modes = {mode: key for mode, key in MODES.items() if any(key in part for part in parts.values())}
        console.table(
            title,
            ["", "tasks", *(f"{mode} pass@1" for mode in modes)],
            [
                [result_name(name, part), part["n"], *(show(part.get(key)) for key in modes.values())]
                for name, part in parts.items()
            ],
        )


def compared(against: Path, tasks: Sequence[Task], greedy: Episodes, sampled: Episodes) -> Json:
    """The folder of the earlier evaluation, and the differences by mode. Raises UserError if its tasks are others."""
    return {"folder": str(against), **differences(verdicts_of(greedy, sampled), verdicts_in(against, tasks))}


def show_differences(console: Console, found: Json) -> None:
    rows = [[mode, show_gain(one), one["n"]] for mode, one in found.items() if mode != "folder"]
    console.table(f"gain over {found['folder']}, task by task, with 95 % intervals", ["", "difference", "tasks"], rows)


def rows_of(benchmarks: dict[str, Json]) -> Iterator[list[object]]:
    """A benchmark's metric first, then pass@k, the metric by the published grader, and the samples' majority vote."""
    for name, result in benchmarks.items():
        how = Decoding(**result["decoding"])
        yield [name, result["metric"], show(result), result["n"], show_decoding(how)]
        if how.samples > 1:
            yield ["", f"pass@{how.samples}", show(result["pass_at_k"][str(how.samples)]), "", ""]
        if "as_published" in result:
            yield ["", "by plain Math-Verify", show(result["as_published"]), "", ""]
        if "majority_at_k" in result:
            yield ["", f"majority@{how.samples}", show(result["majority_at_k"]), "", ""]


def show(estimate: Any) -> str:
    if estimate is None:
        return DASH
    low, high = estimate["ci95"]
    return f"{estimate['mean']:.3f}  [{low:.3f}, {high:.3f}]"


def show_gain(estimate: Any) -> str:
    if estimate is None:
        return DASH
    low, high = estimate["ci95"]
    return f"{estimate['mean']:+.3f}  [{low:+.3f}, {high:+.3f}]"


async def evaluate_base(run: RunDir, tools: ToolClient) -> None:
    """Evaluates the pretrained model before it is fine-tuned, if the recipe asks for it."""
    if not run.config.evaluates_base or run.result(f"evaluation-{BASE}"):
        return
    await asyncio.to_thread(prepare_start, run)
    agent = instructed(run.config.agent, Codec.load(run.start_model), run.evaluation_tasks())
    async with engine_pool(run, run.start_model, tools, agent) as pool:
        await evaluate_stage(run, pool, BASE, run.start_model)


def instructed(agent: AgentConfig, codec: Codec, tasks: Iterable[Task]) -> AgentConfig:
    """The agent with instructions in its prompts, and as many more tokens as these take."""
    if agent.instructed:
        return agent
    longest = max(
        len(codec.prompt(profile, "", instructed=True)) - len(codec.prompt(profile, "", instructed=False))
        for profile in map(agent.profile, {task.profile for task in tasks})
    )
    limits = replace(agent.limits, max_tokens=agent.limits.max_tokens + longest)
    return replace(agent, instructed=True, limits=limits)


async def evaluate_stage(run: RunDir, pool: EnginePool, name: str, model: Path) -> Json:
    """Evaluates the model of a stage; a finished evaluation's result is returned at once."""
    if done := run.result(f"evaluation-{name}"):
        return done
    tasks = run.evaluation_tasks()
    attempts = dict.fromkeys((task.id for task in tasks), both(run.config.evaluation))
    evaluation = evaluation_of(model, tasks, attempts, run.config)
    with (
        Journal(run.trajectories / f"evaluation-{name}.jsonl", evaluation) as journal,
        run.console.stage(f"evaluate {name}", sum(map(len, attempts.values()))) as stage,
    ):
        if journal.notice:
            run.console.say(journal.notice)
        greedy, sampled = await attempt_all(pool, tasks, attempts, stage, journal)
        stage.phase("measuring and writing the results")
        found = measure(tasks, greedy, sampled, run.world)
        found |= await run.world.probes(tasks, Codec.load(model), run.config.agent, pool.logprobs)
        write_evaluation(run.trajectories / f"evaluation-{name}.parquet", tasks, greedy, sampled)
        if name != BASE and (advice := advice_on_form(found["format_errors"], tasks, run.config.agent)):
            run.console.say(f"{name}: {advice}")
        stage.update(stage.done, **{mode: found[key]["mean"] for mode, key in MODES.items() if key in found})
    attempts = [(task.family, episode) for task in tasks for episode in (greedy | sampled)[task.id]]
    found["cost"] = {
        family: asdict_cost([e for f, e in attempts if family in ("all", f)])
        for family in ("all", *sorted({task.family for task in tasks}))
    }
    return run.finish(f"evaluation-{name}", found)


def asdict_cost(episodes: Sequence[EpisodeRecord]) -> Cost:
    return cost_per_success(
        [e.tokens_sent for e in episodes], [len(e.tool_calls) for e in episodes], [e.correct for e in episodes]
    )
