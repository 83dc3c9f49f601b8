"""Passes finished team runs on to the shards of a distillation."""

import time
from collections import Counter
from collections.abc import Callable

from actors.teachers.team import Played, Unfinished
from coa.errors import InfrastructureError, UserError
from coa.teams.run import FailedRun
from coa.teams.teams import plays_free
from coa.teams.transcript import Graded
from coa.usage import Usage
from jobs.run.console import Stage
from jobs.run.distill_store import DistillStore
from jobs.run.run_dir import RunDir
from jobs.teachers.flaws import Flaws
from jobs.teachers.teaching import FailedInARow

MANY = 100
"""Number of graded runs after which scripted experts must have been right at least once."""


class TeamRunBuffer:
    """Buffers finished runs until they are written to the DistillStore. Runs that a killed driver had not written are
    replayed from the ledgers."""

    def __init__(self, run: RunDir, store: DistillStore, flaw: Callable[[Graded], str | None]) -> None:
        """flaw: why the filter's rules drop a run, duplicates apart; None if they don't."""
        self._config, self._keep, self._store = run.config.teaching, run.config.distill.keep, store
        self._flaw = flaw
        self._fresh: list[Graded] = []
        self._dropped: Counter[str] = Counter()
        """Runs in `_fresh` that the filter will drop, by reason, duplicates apart."""
        self._began = self._flushed = time.monotonic()
        self._before, self._seconds_before = store.report.transcripts, store.seconds
        self.failed_in_a_row = FailedInARow(run.config.teaching)
        paid = run.config.distill.transcripts is None and not plays_free(run.config.team)
        self.flaws = Flaws(run.config.teaching.same_flaw if paid else 0, useful=store.report.kept > 0)
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
            flaw = self._flaw(outcome) if isinstance(outcome, Graded) else None
            self.flaws.take(outcome, flaw)
            match outcome:
                case Graded():
                    self._fresh.append(outcome)
                    self._dropped.update([flaw] if flaw else [])
                    self.graded += 1
                    self.right += outcome.correct is not False
                case FailedRun():
                    self._store.give_up(outcome)
                case Unfinished(usage=usage):
                    self.unfinished += 1
                    self.unfinished_usage += usage
        late = time.monotonic() - self._flushed > self._config.shard_s
        if len(self._fresh) >= self._config.wave or late or self._kept_at_most >= self._keep:
            await self.flush()

    @property
    def _kept_at_most(self) -> int:
        """Number of runs that are kept if none of those that are not written is a duplicate."""
        return self._store.report.kept + len(self._fresh) - self._dropped.total()

    def room(self) -> int:
        """Number of runs of language models that may be played at the same time."""
        in_flight, first = self._config.runs_in_flight, self.flaws.most
        return in_flight if self.flaws.useful or not first else min(in_flight, first)

    async def flush(self) -> None:
        """Writes a shard, if there is anything to write."""
        runs, self._fresh = self._fresh, []
        self._dropped.clear()
        self._flushed = time.monotonic()
        if runs:
            await self._store.add(runs, self.seconds)

    def show(self, stage: Stage) -> None:
        report, dropped = self._store.report, Counter(self._store.report.dropped) + self._dropped
        done = report.transcripts + len(self._fresh)
        rate = (done - self._before) / (time.monotonic() - self._began)
        shown = {"kept": done - dropped.total(), "dropped": dropped.total(), **dict(dropped.most_common())}
        shown["runs_s"] = round(rate)
        if self._store.failed:
            shown["failed"] = len(self._store.failed)
        if self._store.usage.requests:
            shown |= {"requests": self._store.usage.requests, "tokens": self._store.usage.tokens}
        stage.update(done, **shown)


def require_right(run: RunDir, buffer: TeamRunBuffer, kept: int, least: int = MANY) -> None:
    """Raises UserError if scripted experts were wrong in all runs, at least `least`: they belong to another world."""
    experts = plays_free(run.config.team) and run.config.distill.transcripts is None
    if not experts or kept or buffer.right or buffer.graded < least:
        return
    raise UserError(
        f"the scripted experts of tasks.world={run.config.tasks.world} were wrong in all of the first {buffer.graded} "
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
