"""Passes finished team runs on to the shards of a distillation."""

import time
from collections import Counter

from actors.teachers.team import Played, Unfinished
from coa.errors import InfrastructureError, UserError
from coa.teams.run import FailedRun
from coa.teams.teams import plays_free
from coa.teams.transcript import Graded
from coa.usage import Usage
from jobs.run.console import Stage
from jobs.run.distill_store import DistillStore
from jobs.run.run_dir import RunDir
from jobs.teachers.teaching import FailedInARow

MANY = 100
"""Number of graded runs after which scripted experts must have been right at least once."""


class Intake:
    """Buffers finished runs until they are written to the DistillStore. Runs that a killed driver had not written are
    replayed from the ledgers."""

    def __init__(self, run: RunDir, store: DistillStore) -> None:
        self._config, self._store = run.config.teaching, store
        self._fresh: list[Graded] = []
        self._began = self._flushed = time.monotonic()
        self._before, self._seconds_before = store.report.transcripts, store.seconds
        self.failed_in_a_row = FailedInARow(run.config.teaching)
        self.failures: Counter[str] = Counter()
        self.right = self.graded = 0
        self.unfinished = 0
        self.unfinished_usage = Usage()

    @property
    def seconds(self) -> float:
        """Seconds of the stage, those before a restart included."""
        return self._seconds_before + time.monotonic() - self._began

    async def take(self, played: Played) -> None:
        self.failures.update(played.failures)
        for outcome in played.outcomes:
            self.failed_in_a_row.take(outcome)
            match outcome:
                case Graded():
                    self._fresh.append(outcome)
                    self.graded += 1
                    self.right += outcome.correct is not False
                case FailedRun():
                    self._store.give_up(outcome)
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
            await self._store.add(runs, self.seconds)

    def show(self, stage: Stage) -> None:
        report, fresh = self._store.report, len(self._fresh)
        done = report.transcripts + fresh
        rate = (done - self._before) / (time.monotonic() - self._began)
        shown = {"kept": report.kept, "dropped": report.transcripts - report.kept, "runs_s": round(rate)}
        if self._store.failed:
            shown["failed"] = len(self._store.failed)
        if self._store.usage.requests:
            shown |= {"requests": self._store.usage.requests, "tokens": self._store.usage.tokens}
        stage.update(done, **shown)


def require_right(run: RunDir, intake: Intake, kept: int, least: int = MANY) -> None:
    """Raises UserError if scripted experts were wrong in all runs, at least `least`: they belong to another world."""
    experts = plays_free(run.config.team) and run.config.distill.transcripts is None
    if not experts or kept or intake.right or intake.graded < least:
        return
    raise UserError(
        f"the scripted experts of tasks.world={run.config.tasks.world} were wrong in all of the first {intake.graded} "
        f"runs on {run.world.name}: let a language model teach (team.model and models, as in the recipe own_tasks; "
        "docs/own_tasks.md), or set sft.data to demonstrations"
    )


def require_some(run: RunDir, store: DistillStore) -> None:
    """Raises UserError or InfrastructureError with the reason if no run was kept."""
    report = store.report
    if report.kept:
        return
    if store.failed:
        one = next(iter(store.failed.values()))
        raise InfrastructureError(f"{len(store.failed)} team runs failed after all retries: {one.where}: {one.why}")
    if not report.transcripts:
        raise UserError("no team run was finished within the budget: raise teaching.budget")
    raise UserError(
        f"none of the {report.transcripts} team runs was worth imitating "
        f"({', '.join(f'{reason}: {n}' for reason, n in report.dropped.items())}): nothing to learn from"
    )
