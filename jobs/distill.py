"""Multi-agent distillation: tasks -> team runs -> filter -> chains worth imitating.

    tasks -> teachers -> graded transcripts -> Books (shards) -> filter -> data/train-NNNNN.parquet -> tokens, card
             or transcripts that are there already

Nothing that was finished is run or paid for again: a stage that was interrupted goes on with what its books lack, and
its teachers find in their ledgers what unfinished runs had been told.
"""

import asyncio
import functools
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from actors.teacher import BudgetConfig, Outcome, Played, Unfinished
from cluster.resources import Demand, tool_demands
from coa.chunks import chunks
from coa.distill.contamination import Contamination
from coa.distill.drop_report import HEADER, rows, write_drops
from coa.distill.filters import Filter
from coa.distill.grade import grade
from coa.errors import InfrastructureError, UserError
from coa.graders import in_place_of
from coa.tasks import load
from coa.teachers.run import Assignment, FailedRun
from coa.teachers.store import read_transcripts
from coa.teachers.transcript import Graded, Transcript
from coa.tools.client import ToolClient
from coa.usage import Usage
from jobs.books import Books
from jobs.console import Console, Stage
from jobs.recipe import Recipe
from jobs.review import Review
from jobs.run import Run, check_run, in_session
from jobs.services import tool_executors
from jobs.start import add_tokens
from jobs.teaching import (
    FailedInARow,
    Judge,
    drop_ledgers,
    language_models,
    models_of_team,
    server_demands,
    teaching,
)

STAGE = "distill"
BUDGET = "budget"
"""What stopped the stage, where that is not that it was done."""

AT_ONCE = 64
"""Transcripts that are there already and are graded at the same time."""


def check(config: Recipe) -> None:
    check_run(config)
    if config.sft.data:
        raise UserError("sft.data is set, and takes the place of what a team does: sft.data=[] lets it work")


def models_of_review(config: Recipe) -> set[str]:
    return {config.distill.obedience.model, config.distill.rewriting.model} - {""}


def models_asked(config: Recipe) -> set[str]:
    """Keys of the recipe's `models`."""
    return models_of_review(config) | (set() if config.distill.transcripts else models_of_team(config))


def demands_of(config: Recipe) -> list[Demand]:
    return [*tool_demands(config.placement), *server_demands(config, models_asked(config))]


def run(config: Recipe, console: Console) -> None:
    async def body(run: Run) -> None:
        run.prepare()
        async with tool_executors(run) as executors:
            await distill(run, executors)

    in_session(config, console, body, demands=[demands_of(config)])


async def distill(run: Run, executors: Sequence[Any]) -> dict[str, Any]:
    """The stage; returns its result, at once if it is finished already."""
    if (done := run.result(STAGE)) and not goes_on(run, done):
        return done
    config = run.config.distill
    async with language_models(run, models_asked(run.config)) as models:
        filter = Filter(config.filters, contamination_of(run))
        review = Review(run, models, filter.flaw)
        books = Books(run.teachers, run.data, filter, revise=review.revise)
        await books.open()
        if config.retry_failed and books.report.kept < config.keep:
            books.forgive()
        intake = Intake(run, books)
        if config.transcripts:
            source = given(run, books, executors, review.judge)
        else:
            source = taught(run, books, executors, models, review.judge)
        with run.console.stage(STAGE, run.team_runs) as stage:
            async with aclosing(source) as stream:
                async for played in stream:
                    await intake.take(played)
                    intake.show(stage)
                    if books.report.kept >= config.keep or intake.failed_in_a_row.given_up:
                        break
            await intake.flush()
            intake.show(stage)
        intake.failed_in_a_row.check()
    write_drops(run.teachers, books.report)
    run.console.table("what became of the transcripts", list(HEADER), [list(row) for row in rows(books.report)])
    require_some(run, books)
    cost = books.usage + intake.unfinished_usage
    add_tokens(run, books.report, cost)
    if not (books.failed or intake.unfinished):
        drop_ledgers(run)
    report = books.report
    return run.finish(
        STAGE,
        {
            "runs": run.team_runs,
            "transcripts": report.transcripts,
            "kept": report.kept,
            "upsampled": report.upsampled,
            "dropped": dict(report.dropped),
            "infrastructure_failures": intake.failures.total(),
            "failed": len(books.failed),
            "unfinished": intake.unfinished,
            "rewritten": dict(review.rewritten),
            "stopped": BUDGET if intake.unfinished else None,
            "budget": asdict(run.config.teaching.budget),
            "requests": cost.requests,
            "tokens": cost.tokens,
            "seconds": round(intake.seconds, 1),
        },
    )


def goes_on(run: Run, done: dict[str, Any]) -> bool:
    """Whether a finished stage has more to do: failed runs to retry, runs that a smaller budget stopped, or more
    than were wanted before. What is fine-tuned since stands on the data as it is."""
    config = run.config.distill
    retry = done["failed"] and config.retry_failed
    if why := over(run, done):
        if retry:
            run.console.say(f"{why}: the runs that failed are not tried again")
        return False
    budget = run.config.teaching.budget
    larger = done["stopped"] == BUDGET and budget.exceeds(BudgetConfig(**done["budget"]))
    return bool(larger or retry or run.team_runs > done["runs"])


def over(run: Run, done: dict[str, Any]) -> str:
    """Why no run is wanted any more; empty where one may be."""
    if tuned(run):
        return "the model is fine-tuned on these runs"
    return "as many runs are kept as distill.keep wants" if done["kept"] >= run.config.distill.keep else ""


def tuned(run: Run) -> bool:
    """Whether fine-tuning has begun."""
    return run.result("sft") is not None or (run.checkpoints / "sft").exists()


def require_most(run: Run, done: dict[str, Any]) -> None:
    """Raises InfrastructureError where too much failed for what is left to be learnt from, unless it is already."""
    failed, most = done["failed"], run.config.distill.most_failed
    every = failed + done["transcripts"]
    if failed > most * every and not tuned(run):
        raise InfrastructureError(
            f"{failed} of {every} team runs failed, more than distill.most_failed={most:g} allows "
            "(teachers/failed.jsonl says why): --retry-failed tries them again"
        )


def contamination_of(run: Run) -> Contamination:
    """What the run may not be trained on."""
    return Contamination.of(evaluation_questions(run), run.config.distill.filters.contamination_words)


def evaluation_questions(run: Run) -> Iterator[str]:
    """Of the run's own held-out tasks, and of the evaluation sets that the recipe names."""
    for task in run.evaluation_tasks():
        yield task.question
    for spec in run.config.distill.against:
        for task in load(spec, profile=run.config.tasks.profile):
            yield task.question


async def taught(
    run: Run, books: Books, executors: Sequence[Any], models: Mapping[str, Any], judge: Judge
) -> AsyncGenerator[Played]:
    """What the team makes of the assignments that the books lack."""
    due = assignments(run, books)
    if books.report.kept >= run.config.distill.keep:
        return
    async with teaching(run, executors, models) as team:
        team.finished = books.usage
        async with aclosing(team.stream(due, judge)) as stream:
            async for played in stream:
                yield played


def assignments(run: Run, books: Books) -> Iterator[Assignment]:
    """Endless tasks are each tried once; a file's tasks in turn, again and again with other luck."""
    for index in range(run.team_runs):
        task = run.training_task(STAGE, index)
        name = (task.id, index)
        if name not in books.names and name not in books.failed:
            yield Assignment(task, attempt=index)


async def given(run: Run, books: Books, executors: Sequence[Any], judge: Judge) -> AsyncGenerator[Played]:
    """Transcripts of other runs or systems; those that nobody graded are graded now."""
    from cluster.pool import call_executors

    use_tool = ToolClient(functools.partial(call_executors, executors))
    grader = run.config.tasks.grader

    async def graded(one: Graded) -> Outcome:
        if one.correct is not None:
            return one
        try:
            return await grade(to_be_graded_by(grader, one.transcript), use_tool)
        except InfrastructureError as error:
            assignment = Assignment(one.transcript.task, one.transcript.attempt)
            return FailedRun(assignment, type(error).__name__, str(error), one.usage)

    assert run.config.distill.transcripts is not None
    transcripts = numbered(read_transcripts(Path(run.config.distill.transcripts)))
    for chunk in chunks(_not_in(books, transcripts), AT_ONCE):
        yield Played(outcomes=await judge(await asyncio.gather(*map(graded, chunk))), failures={})


def to_be_graded_by(grader: str | None, transcript: Transcript) -> Transcript:
    """With the recipe's grader, where its task is an open question: who named the task's own is not known any more."""
    task = transcript.task
    return replace(transcript, task=replace(task, grader=in_place_of(task.grader, grader)))


def numbered(runs: Iterable[Graded]) -> Iterator[Graded]:
    """The runs of a task counted through: those of several files may have the same numbers."""
    seen: Counter[str] = Counter()
    for one in runs:
        task_id = one.transcript.task.id
        yield replace(one, transcript=replace(one.transcript, attempt=seen[task_id]))
        seen[task_id] += 1


def _not_in(books: Books, runs: Iterable[Graded]) -> Iterator[Graded]:
    for one in runs:
        name = (one.transcript.task.id, one.transcript.attempt)
        if name not in books.names and name not in books.failed:
            yield one


class Intake:
    """What was played, on its way into the books: a kill plays what is not in them again, from the ledgers."""

    def __init__(self, run: Run, books: Books) -> None:
        self._config, self._books = run.config.teaching, books
        self._fresh: list[Graded] = []
        self._began = self._flushed = time.monotonic()
        self._before, self._seconds_before = books.report.transcripts, books.seconds
        self.failed_in_a_row = FailedInARow(run.config.teaching)
        self.failures: Counter[str] = Counter()
        self.unfinished = 0
        self.unfinished_usage = Usage()

    @property
    def seconds(self) -> float:
        """Of the stage, those before a restart included."""
        return self._seconds_before + time.monotonic() - self._began

    async def take(self, played: Played) -> None:
        self.failures.update(played.failures)
        for outcome in played.outcomes:
            self.failed_in_a_row.take(outcome)
            match outcome:
                case Graded():
                    self._fresh.append(outcome)
                case FailedRun():
                    self._books.give_up(outcome)
                case Unfinished(usage=usage):
                    self.unfinished += 1
                    self.unfinished_usage += usage
        late = time.monotonic() - self._flushed > self._config.shard_s
        if len(self._fresh) >= self._config.wave or late:
            await self.flush()

    async def flush(self) -> None:
        """Writes a shard, if there is anything to write."""
        runs, self._fresh = self._fresh, []
        self._flushed = time.monotonic()
        if runs:
            await self._books.add(runs, self.seconds)

    def show(self, stage: Stage) -> None:
        report, fresh = self._books.report, len(self._fresh)
        done = report.transcripts + fresh
        rate = (done - self._before) / (time.monotonic() - self._began)
        told = {"kept": report.kept, "dropped": report.transcripts - report.kept, "runs_s": round(rate)}
        if self._books.failed:
            told["failed"] = len(self._books.failed)
        if self._books.usage.requests:
            told |= {"requests": self._books.usage.requests, "tokens": self._books.usage.tokens}
        stage.update(done, **told)


def require_some(run: Run, books: Books) -> None:
    """Raises what is wrong where there is nothing to learn from."""
    report = books.report
    if report.kept:
        return
    if books.failed:
        one = next(iter(books.failed.values()))
        raise InfrastructureError(f"{len(books.failed)} team runs failed to the last try: {one.where}: {one.why}")
    if not report.transcripts:
        raise UserError("no team run was finished within the budget: raise teaching.budget")
    raise UserError(
        f"none of the {report.transcripts} team runs was worth imitating "
        f"({', '.join(f'{reason}: {n}' for reason, n in report.dropped.items())}): nothing to learn from"
    )
