"""Distillation of an agent that is a program: a language model answers it, and its right runs are what the policy
learns to say.

    tasks -> program -> gateway -> teacher -> contexts of right runs -> data/train-NNNNN.parquet -> card

The replies are in the teacher's ledger: an interrupted stage plays its programs again, and pays for no reply twice.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from itertools import islice

from actors.gateway.player import ProgramPlayer
from actors.gateway.teacher import Teacher
from actors.messages import EpisodeId, EpisodeOrder
from actors.tools.remote import ToolClient
from coa.agent.grammar import ANSWER, Span, render
from coa.distill.contamination import Contamination
from coa.distill.dataset.rows import PROGRAM, Demonstration
from coa.distill.dataset.shards import shard_paths
from coa.distill.dataset.tokens import write_contexts
from coa.distill.drop_report import FilterReport
from coa.distill.stages import WRONG
from coa.errors import EpisodeFailed, InfrastructureError, UserError
from coa.json_object import Json
from coa.teams.transcript import Ending
from coa.types import Scored, Status, Task, Trajectory
from coa.usage import Usage
from jobs.recipe.needs import longest_sample
from jobs.run.console import Stage
from jobs.run.run_dir import RunDir
from jobs.stages.programs import program_player
from jobs.stages.start import prepare_start, write_card
from jobs.teachers.teaching import GIVE_UP_AFTER, drop_ledgers, language_models, watched

STAGE = "distill"
SHARD_ROWS = 1000
Row = tuple[Demonstration, Trajectory]


@dataclass(eq=False)
class _Found:
    """What the stage has so far."""

    runs: int = 0
    kept: int = 0
    """Runs whose contexts are rows."""
    rows: list[Row] = field(default_factory=list[Row])
    """Of the shard that is not written yet."""
    shards: int = 0
    dropped: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    failed_in_a_row: int = 0


async def distill_program(run: RunDir, tools: ToolClient, contamination: Contamination) -> Json:
    """Runs the stage and returns its result."""
    config, began, found = run.config, time.monotonic(), _Found()
    with run.console.waiting(STAGE, "preparing the model whose chat template writes what the teacher says"):
        await asyncio.to_thread(prepare_start, run)
    for old in shard_paths(run.data):
        old.unlink()
    name = config.team.model
    async with language_models(run, {name}) as models:
        teacher = Teacher(models[name])
        async with program_player(config, run.start_model, tools, teacher, run.console.say) as player:
            with run.console.stage(STAGE, run.team_runs) as stage:
                async with watched(models, stage, run.console.say):
                    await _fill(run, player, teacher, found, stage, contamination)
    _write(run, found)
    if not found.kept:
        reasons = ", ".join(f"{n} x {why}" for why, n in (found.dropped + found.failures).most_common(3))
        raise UserError(f"none of the program's {found.runs} runs with models.{name} can be learnt from: {reasons}")
    report = FilterReport(transcripts=found.runs, kept=found.kept, dropped=found.dropped)
    await asyncio.to_thread(write_card, run, report, teacher.usage)
    if not found.failures:
        drop_ledgers(run)
    return run.finish(STAGE, result_of(run, found, teacher.usage, time.monotonic() - began))


def result_of(run: RunDir, found: _Found, cost: Usage, seconds: float) -> Json:
    """The same keys as a team's distillation has."""
    budget = run.config.teaching.budget
    return {
        "runs": run.team_runs,
        "transcripts": found.runs,
        "kept": found.kept,
        "further": 0,
        "upsampled": 0,
        "dropped": dict(found.dropped),
        "infrastructure_failures": found.failures.total(),
        "failed": found.failures.total(),
        "unfinished": 0,
        "rewritten": {},
        "stopped": None if budget.allows(cost) else "budget",
        "budget": asdict(budget),
        "requests": cost.requests,
        "tokens": cost.tokens,
        "seconds": round(seconds, 1),
    }


async def _fill(
    run: RunDir,
    player: ProgramPlayer,
    teacher: Teacher,
    found: _Found,
    stage: Stage,
    contamination: Contamination,
) -> None:
    config = run.config
    async with aclosing(_played(run, player, teacher, _orders(run, found, contamination))) as played:
        async for order, outcome in played:
            if isinstance(outcome, EpisodeFailed):
                found.failures[outcome.where] += 1
                found.failed_in_a_row += 1
                if found.failed_in_a_row > GIVE_UP_AFTER * config.agent.program.at_once:
                    raise InfrastructureError(f"too many runs of the program failed in a row; the last: {outcome.why}")
            else:
                found.failed_in_a_row = 0
                found.runs += 1
                if reason := _reason(outcome):
                    found.dropped[reason] += 1
                else:
                    found.kept += 1
                    found.rows += _rows(order, outcome, f"{config.team.model}: {config.models[config.team.model].name}")
            if len(found.rows) >= SHARD_ROWS:
                _write(run, found)
            shown = {"kept": found.kept, **dict(found.dropped.most_common()), "requests": teacher.usage.requests}
            failed = {"failed": found.failures.total()} if found.failures else {}
            stage.update(found.runs + found.failures.total(), **shown, **failed)
            if found.kept >= config.distill.keep:
                return


async def _played(
    run: RunDir, player: ProgramPlayer, teacher: Teacher, orders: Iterator[EpisodeOrder]
) -> AsyncGenerator[tuple[EpisodeOrder, Scored | EpisodeFailed]]:
    """Plays the program's runs, several at a time, until the budget is spent."""

    async def play(order: EpisodeOrder) -> tuple[EpisodeOrder, Scored | EpisodeFailed]:
        try:
            return order, await player.play(order)
        except EpisodeFailed as failed:
            return order, failed

    budget = run.config.teaching.budget
    playing: set[asyncio.Task[tuple[EpisodeOrder, Scored | EpisodeFailed]]] = set()
    try:
        while True:
            free = run.config.agent.program.at_once - len(playing) if budget.allows(teacher.usage) else 0
            playing |= {asyncio.ensure_future(play(order)) for order in islice(orders, free)}
            if not playing:
                return
            done, playing = await asyncio.wait(playing, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                yield one.result()
    finally:
        for one in playing:
            one.cancel()
        await asyncio.gather(*playing, return_exceptions=True)


def _orders(run: RunDir, found: _Found, contamination: Contamination) -> Iterator[EpisodeOrder]:
    agent = run.config.agent
    for index in range(run.team_runs):
        task = run.training_task(STAGE, index)
        if reason := contamination.reason(task.question):
            found.runs += 1
            found.dropped[reason] += 1
            continue
        yield EpisodeOrder(
            id=EpisodeId(task.id, index, 0),
            task=task,
            sampling=run.config.rl.sampling,
            agent=agent,
            limit_s=agent.limits.max_seconds,
        )


def _reason(scored: Scored) -> str | None:
    """Why a run is not learnt from; None if it is."""
    match scored.trajectory.status:
        case Status.ANSWERED:
            return None if scored.correct else WRONG
        case Status.MALFORMED:
            return Ending.MALFORMED.value
        case _:
            return Ending.OUT_OF_STEPS.value


def _rows(order: EpisodeOrder, scored: Scored, model: str) -> Iterator[Row]:
    for context in scored.contexts:
        if context.action_mask.any():
            yield _row(order.task, order.id.group, context, model), context


def _row(task: Task, attempt: int, context: Trajectory, model: str) -> Demonstration:
    return Demonstration(
        task=task,
        text=render((Span(ANSWER, context.answer),)),
        attempt=attempt,
        source=PROGRAM,
        team=PROGRAM,
        models=((PROGRAM, model),),
        interactions=context.turns,
    )


def _write(run: RunDir, found: _Found) -> None:
    if found.rows:
        limit = longest_sample(run.config, "sft")
        write_contexts(run.data, found.shards, found.rows, {}, limit=limit)
        found.rows, found.shards = [], found.shards + 1
