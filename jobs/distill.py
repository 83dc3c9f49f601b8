"""Multi-agent distillation: tasks -> team runs -> filter -> chains worth imitating.

    tasks -> teachers -> graded transcripts -> Books (shards) -> filter -> data/train-NNNNN.parquet -> tokens, card
             or transcripts that are there already

Nothing that was finished is run or paid for again: a stage that was interrupted goes on with what its books lack, and
its teachers find in their ledgers what unfinished runs had been told.
"""

import asyncio
import functools
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from actors.teacher import Outcome, Played, Unfinished
from coa.distill.contamination import Contamination
from coa.distill.drop_report import HEADER, rows, write_drops
from coa.distill.filters import Filter
from coa.distill.grade import grade
from coa.errors import InfrastructureError, UserError
from coa.tasks import load
from coa.teachers.run import Assignment, Failed
from coa.teachers.store import read_transcripts
from coa.teachers.transcript import Graded
from coa.tools.client import ToolClient
from coa.usage import Usage
from jobs.books import Books
from jobs.console import Console, Stage
from jobs.recipe import Recipe
from jobs.review import Review
from jobs.run import Run, check_run, in_session
from jobs.services import tool_executors
from jobs.start import add_tokens
from jobs.teaching import language_models, models_of_team, teaching

STAGE = "distill"
BUDGET = "budget"
"""What stopped the stage, where that is not that it was done."""


def check(config: Recipe) -> None:
    check_run(config)


def run(config: Recipe, console: Console) -> None:
    from cluster.resources import tool_demands

    async def body(run: Run) -> None:
        run.prepare()
        async with tool_executors(run) as executors:
            await distill(run, executors)

    in_session(config, console, body, demands=[tool_demands(config.placement)])


async def distill(run: Run, executors: Sequence[Any]) -> dict[str, Any]:
    """The stage; returns its result, at once if it is finished already."""
    if (done := run.result(STAGE)) and not goes_on(run, done):
        return done
    config = run.config.distill
    began = time.monotonic()
    contamination = Contamination.of(evaluation_questions(run), config.filters.contamination_words)
    names = {config.obedience.model, config.rewriting.model} | (set() if config.transcripts else models_of_team(run))
    failures: Counter[str] = Counter()
    unfinished = 0
    fresh = Shard(run)
    async with language_models(run, names) as models:
        review = Review(run, models)
        books = Books(run.teachers, run.data, Filter(config.filters, contamination), revise=review.revise)
        await books.open()
        before = books.seconds
        if config.retry_failed:
            books.forgive()
        with run.console.stage(STAGE, config.runs) as stage:
            given_or_taught = given if config.transcripts else taught
            async for played in given_or_taught(run, books, executors, models):
                failures.update(played.failures)
                for outcome in await review.judge(played.outcomes):
                    match outcome:
                        case Graded():
                            fresh.runs.append(outcome)
                        case Failed():
                            books.give_up(outcome)
                        case Unfinished():
                            unfinished += 1
                if fresh.due():
                    await books.add(fresh.take(), before + time.monotonic() - began)
                show(stage, books, len(fresh.runs), time.monotonic() - began)
                if books.report.kept >= config.keep:
                    break
            if fresh.runs:
                await books.add(fresh.take(), before + time.monotonic() - began)
            show(stage, books, 0, time.monotonic() - began)
    write_drops(run.teachers, books.report)
    run.console.table("what became of the transcripts", list(HEADER), [list(row) for row in rows(books.report)])
    require_some(run, books)
    add_tokens(run, books.report, books.usage)
    if not (books.failed or unfinished):
        for ledger in ("replies", "observations"):
            shutil.rmtree(run.teachers / ledger, ignore_errors=True)
    report = books.report
    return run.finish(
        STAGE,
        {
            "transcripts": report.transcripts,
            "kept": report.kept,
            "upsampled": report.upsampled,
            "dropped": dict(report.dropped),
            "infrastructure_failures": failures.total(),
            "failed": len(books.failed),
            "unfinished": unfinished,
            "rewritten": dict(review.rewritten),
            "stopped": BUDGET if unfinished else None,
            "requests": books.usage.requests,
            "tokens": books.usage.tokens,
            "seconds": round(before + time.monotonic() - began, 1),
        },
    )


def goes_on(run: Run, done: dict[str, Any]) -> bool:
    """Whether a finished stage has more to do: failed runs to retry, or runs that a smaller budget stopped. What was
    fine-tuned since stands on the data as it is."""
    if run.result("sft") is not None:
        return False
    spent = Usage(done["requests"], done["tokens"])
    larger = done["stopped"] == BUDGET and run.config.teaching.budget.allows(spent)
    return larger or bool(done["failed"] and run.config.distill.retry_failed)


def evaluation_questions(run: Run) -> Iterator[str]:
    """Of the run's own held-out tasks, and of the evaluation sets that the recipe names."""
    for task in run.evaluation_tasks():
        yield task.question
    for spec in run.config.distill.against:
        for task in load(spec, profile=run.config.tasks.profile):
            yield task.question


async def taught(run: Run, books: Books, executors: Sequence[Any], models: Mapping[str, Any]) -> AsyncIterator[Played]:
    """What the team makes of the assignments that the books lack."""
    due = assignments(run, books)
    if books.report.kept >= run.config.distill.keep:
        return
    async with teaching(run, executors, models) as team:
        team.finished = books.usage
        async for played in team.stream(due):
            ended = (one.transcript.usage for one in played.outcomes if isinstance(one, Graded))
            team.finished = sum(ended, team.finished)
            yield played


def assignments(run: Run, books: Books) -> Iterator[Assignment]:
    """Endless tasks are each tried once; a file's tasks again and again, with other luck."""
    for index in range(run.config.distill.runs):
        task = run.training_task(STAGE, index)
        name = (task.id, index)
        if name not in books.names and name not in books.failed:
            yield Assignment(task, attempt=index)


async def given(run: Run, books: Books, executors: Sequence[Any], _models: Mapping[str, Any]) -> AsyncIterator[Played]:
    """Transcripts of other runs or systems; those that nobody graded are graded now."""
    from cluster.pool import call_executors

    use_tool = ToolClient(functools.partial(call_executors, executors))

    async def graded(one: Graded) -> Outcome:
        if one.correct is not None:
            return one
        try:
            return await grade(one.transcript, use_tool)
        except InfrastructureError as error:
            assignment = Assignment(one.transcript.task, one.transcript.attempt)
            return Failed(assignment, type(error).__name__, str(error))

    assert run.config.distill.transcripts is not None
    for chunk in _chunks(_not_in(books, read_transcripts(Path(run.config.distill.transcripts)))):
        yield Played(outcomes=list(await asyncio.gather(*map(graded, chunk))), failures={})


def _not_in(books: Books, runs: Iterable[Graded]) -> Iterator[Graded]:
    for one in runs:
        name = (one.transcript.task.id, one.transcript.attempt)
        if name not in books.names and name not in books.failed:
            yield one


def _chunks(runs: Iterator[Graded], size: int = 64) -> Iterator[list[Graded]]:
    chunk: list[Graded] = []
    for one in runs:
        chunk.append(one)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


class Shard:
    """Runs that are not in the books yet: a kill plays them again, from the ledgers."""

    def __init__(self, run: Run) -> None:
        self.runs: list[Graded] = []
        self._config = run.config.teaching
        self._since = time.monotonic()

    def due(self) -> bool:
        late = time.monotonic() - self._since > self._config.shard_s
        return len(self.runs) >= self._config.wave or (late and bool(self.runs))

    def take(self) -> list[Graded]:
        runs, self.runs = self.runs, []
        self._since = time.monotonic()
        return runs


def show(stage: Stage, books: Books, fresh: int, elapsed: float) -> None:
    report = books.report
    done = report.transcripts + fresh
    told = {"kept": report.kept, "dropped": report.transcripts - report.kept, "runs_s": round(done / elapsed)}
    if books.failed:
        told["failed"] = len(books.failed)
    if books.usage.requests:
        told |= {"requests": books.usage.requests, "tokens": books.usage.tokens}
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
