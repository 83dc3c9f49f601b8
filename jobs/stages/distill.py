"""Multi-agent distillation: tasks -> team runs -> filter -> chains worth imitating.

    tasks -> teachers -> graded transcripts -> DistillStore -> filter -> data/train-NNNNN.parquet -> tokens, card
             or existing transcripts

Finished work is neither repeated nor paid for again: an interrupted stage continues with the runs that its store lacks,
and the replies that unfinished runs have received are in the teachers' ledgers.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from uuid import uuid4

from actors.handles import Handle
from actors.teachers.team import BudgetConfig, Outcome, Played
from actors.tools.remote import ToolClient
from coa.distill.contamination import Contamination
from coa.distill.drop_report import HEADER, details, rows, write_drops
from coa.distill.grade import grade
from coa.errors import InfrastructureError
from coa.grading.graders import in_place_of
from coa.json_object import Json
from coa.storage.chunks import chunks
from coa.tasks.loading import load
from coa.teams.run import Assignment, FailedRun
from coa.teams.store import read_transcripts
from coa.teams.transcript import Graded, Transcript
from coa.tools.client import ToolCaller
from coa.usage import Usage
from jobs.recipe.needs import filter_of, models_asked
from jobs.run.distill_store import DistillStore
from jobs.run.run_dir import RunDir
from jobs.stages.distill_program import distill_program
from jobs.stages.start import add_tokens, own_columns, require_tokenizer
from jobs.teachers.review import Review
from jobs.teachers.teaching import (
    Judge,
    drop_ledgers,
    language_models,
    teaching,
    watched,
)
from jobs.teachers.team_run_buffer import TeamRunBuffer, require_right, require_some

STAGE = "distill"
BUDGET = "budget"
"""Reason in the result of a stage that the budget stopped before all runs were played."""

AT_ONCE = 64
"""Maximum number of existing transcripts that are graded at the same time."""


async def distill(run: RunDir, tools: ToolClient) -> Json:
    """Runs the stage and returns its result, at once if it is finished already."""
    if (done := run.result(STAGE)) and not goes_on(run, done):
        return done
    config = run.config.distill
    if run.config.agent.program.is_set:
        return await distill_program(run, tools, contamination_of(run))
    await asyncio.to_thread(require_tokenizer, run)
    async with language_models(run, models_asked(run.config)) as models:
        filter = filter_of(run.config, contamination_of(run))
        review = Review(run, models, filter.flaw)
        store = DistillStore(run.teachers, run.data, filter, revise=review.revise, own=own_columns(run))
        await store.open()
        if config.retry_failed and store.report.kept < config.keep:
            store.retry_failed()
        buffer = TeamRunBuffer(run, store, filter.flaw)
        if config.transcripts:
            source = existing_runs(run, store, tools, review.judge)
        else:
            source = played_runs(run, store, tools, models, review.judge, buffer.room)
        with run.console.stage(STAGE, run.team_runs) as stage:
            async with watched(models, stage, run.console.say), aclosing(source) as stream:
                async for played in stream:
                    await buffer.take(played)
                    buffer.show(stage)
                    require_right(run, buffer, store.report.kept)
                    if store.report.kept >= config.keep or buffer.failed_in_a_row.given_up or buffer.flaws.problem:
                        break
            await buffer.flush()
            buffer.show(stage)
        write_drops(run.teachers, store.report, store.dropped())
        buffer.failed_in_a_row.check()
        buffer.flaws.check()
    run.console.table("transcripts by outcome", list(HEADER), [list(row) for row in rows(store.report)])
    for line in details(store.dropped()):
        run.console.say(line)
    require_right(run, buffer, store.report.kept, least=1)
    require_some(run, store)
    cost = store.usage + buffer.unfinished_usage
    with run.console.waiting(STAGE, "making the tokenizer and the tokens of the demonstrations"):
        await asyncio.to_thread(add_tokens, run, store.report, cost)
    if not (store.failed or buffer.unfinished):
        drop_ledgers(run)
    return run.finish(STAGE, result_of(run, store, buffer, review, cost))


def result_of(run: RunDir, store: DistillStore, buffer: TeamRunBuffer, review: Review, cost: Usage) -> Json:
    """The result of the stage, as later commands and the report read it."""
    report = store.report
    return {
        "runs": run.team_runs,
        "transcripts": report.transcripts,
        "kept": report.kept,
        "further": report.further,
        "upsampled": report.upsampled,
        "dropped": dict(report.dropped),
        "infrastructure_failures": buffer.failures.total(),
        "failed": len(store.failed),
        "unfinished": buffer.unfinished,
        "rewritten": dict(review.rewritten),
        "stopped": BUDGET if buffer.unfinished else None,
        "budget": asdict(run.config.teaching.budget),
        "requests": cost.requests,
        "tokens": cost.tokens,
        "seconds": round(buffer.seconds, 1),
    }


def goes_on(run: RunDir, done: Json) -> bool:
    """Whether a finished stage has more to do: failed runs to retry, runs that a smaller budget stopped, or a
    larger number of runs. Never after fine-tuning has begun, because the data set must not change under it."""
    config = run.config.distill
    retry = done["failed"] and config.retry_failed
    if why := over(run, done):
        if retry:
            run.console.say(f"{why}: the runs that failed are not tried again")
        return False
    budget = run.config.teaching.budget
    larger = done["stopped"] == BUDGET and budget.exceeds(BudgetConfig(**done["budget"]))
    return bool(larger or retry or run.team_runs > done["runs"])


def over(run: RunDir, done: Json) -> str:
    """Why no further run is needed; empty if one may be."""
    if tuned(run):
        return "the model is fine-tuned on these runs"
    return "distill.keep runs are kept already" if done["kept"] >= run.config.distill.keep else ""


def tuned(run: RunDir) -> bool:
    """Whether fine-tuning has begun."""
    return run.result("sft") is not None or (run.checkpoints / "sft").exists()


def require_most(run: RunDir, done: Json) -> None:
    """Raises InfrastructureError if more than `distill.most_failed` of the team runs failed, unless fine-tuning has
    already begun."""
    failed, most = done["failed"], run.config.distill.most_failed
    every = failed + done["transcripts"]
    if failed > most * every and not tuned(run):
        raise InfrastructureError(
            f"{failed} of {every} team runs failed, more than distill.most_failed={most:g} allows "
            "(teachers/failed.jsonl says why): --retry-failed tries them again"
        )


def contamination_of(run: RunDir) -> Contamination:
    """The check for tasks that the run may not be trained on: those of the evaluation sets that the recipe names, and
    those that the run holds out itself."""
    words = run.config.distill.filters.contamination_words
    own = Contamination.of((task.question for task in run.held_out_tasks()), words)
    return Contamination.of(named_questions(run), words, own)


def named_questions(run: RunDir) -> Iterator[str]:
    for spec in run.config.distill.against:
        for task in load(spec, profile=run.config.tasks.profile):
            yield task.question


async def played_runs(
    run: RunDir,
    store: DistillStore,
    tools: ToolClient,
    models: Mapping[str, Handle],
    judge: Judge,
    room: Callable[[], int],
) -> AsyncGenerator[Played]:
    """Yields the team's runs of the assignments that the store lacks. room: as in `Teaching.stream`."""
    due = assignments(run, store)
    if store.report.kept >= run.config.distill.keep:
        return
    async with teaching(run, tools, models) as team:
        team.finished = store.usage
        async with aclosing(team.stream(due, judge, room)) as stream:
            async for played in stream:
                yield played


def assignments(run: RunDir, store: DistillStore) -> Iterator[Assignment]:
    """The assignments that the store lacks. A world's endless tasks are each tried once, a file's tasks repeatedly in
    turn, with another attempt number each time."""
    for index in range(run.team_runs):
        task = run.training_task(STAGE, index)
        name = (task.id, index)
        if name not in store.names and name not in store.failed:
            yield Assignment(task, attempt=index)


async def existing_runs(run: RunDir, store: DistillStore, tools: ToolClient, judge: Judge) -> AsyncGenerator[Played]:
    """Yields transcripts of other runs or systems; those without a grade are graded first."""
    caller = ToolCaller(tools, f"transcripts {uuid4().hex}")
    grader = run.config.tasks.grader

    async def graded(one: Graded) -> Outcome:
        if one.correct is not None:
            return one
        try:
            name = (one.transcript.task.id, one.transcript.attempt)
            return await grade(to_be_graded_by(grader, one.transcript), caller.in_order(name))
        except InfrastructureError as error:
            assignment = Assignment(one.transcript.task, one.transcript.attempt)
            return FailedRun(assignment, type(error).__name__, str(error), one.usage)

    assert run.config.distill.transcripts is not None
    transcripts = numbered(read_transcripts(Path(run.config.distill.transcripts)))
    for chunk in chunks(_not_in(store, transcripts), AT_ONCE):
        yield Played(outcomes=await judge(await asyncio.gather(*map(graded, chunk))), failures={})


def to_be_graded_by(grader: str | None, transcript: Transcript) -> Transcript:
    """The transcript with the recipe's grader, if its task is an open question: transcripts do not record whether their
    grader came from the row, the benchmark or the profile."""
    task = transcript.task
    return replace(transcript, task=replace(task, grader=in_place_of(task.grader, grader)))


def numbered(runs: Iterable[Graded]) -> Iterator[Graded]:
    """Numbers the attempts at each task anew, since runs of several files may have the same numbers."""
    seen: Counter[str] = Counter()
    for one in runs:
        task_id = one.transcript.task.id
        yield replace(one, transcript=replace(one.transcript, attempt=seen[task_id]))
        seen[task_id] += 1


def _not_in(store: DistillStore, runs: Iterable[Graded]) -> Iterator[Graded]:
    for one in runs:
        name = (one.transcript.task.id, one.transcript.attempt)
        if name not in store.names and name not in store.failed:
            yield one
