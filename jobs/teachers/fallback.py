"""The teacher fallback of RL: the team plays tasks that the policy failed in every episode, and the policy imitates it.

a group that failed --> TeacherFallback (rl.teacher_fallback) --> the team's run --> filter --> samples to imitate
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from actors.handles import Handle
from actors.teachers.team import Outcome, Unfinished
from actors.tools.remote import ToolClient
from coa.agent.codec import Codec
from coa.agent.records import GroupRecord
from coa.concurrency import Spawn
from coa.distill.duplicates import DuplicateConfig
from coa.distill.fallback import failed_altogether, imitations
from coa.distill.filters import Filter
from coa.errors import EndpointDown
from coa.json_object import Json
from coa.storage.jsonl import append_line, read_lines, write_lines
from coa.teams.run import Assignment, FailedRun
from coa.teams.store import names_in, read_transcripts, write_transcripts
from coa.teams.teams import plays_free
from coa.teams.transcript import Graded
from coa.types import Sample
from coa.usage import Usage
from jobs.recipe.needs import models_of_fallback
from jobs.run.run_dir import RunDir
from jobs.stages.distill import contamination_of
from jobs.stages.reinforcement.rl_stats import STAGE
from jobs.teachers.flaws import Flaws
from jobs.teachers.review import Review
from jobs.teachers.teaching import FailedInARow, Teaching, drop_ledgers, language_models, teaching

FIRST_ATTEMPT = 1_000_000
"""The smallest attempt number of a fallback run. Attempt numbers of distillation are smaller, so the two never collide
for one task."""
TRY_AGAIN_S = 600.0
"""Seconds after which a team that is down is given a task again, to see whether it is up."""


class TeamState(StrEnum):
    up = "up"
    down = "down"
    """Too many of its runs failed one after the other, or have the same flaw. It is given a task every TRY_AGAIN_S,
    until a run succeeds."""


class FallbackJournal:
    """A file with a line for each task that the team was given, and for each batch with the attempts that it imitates.

        {"task": 17}                                         index in the stage's stream of a task given to the team
        {"version": 3, "attempts": [1000016, 1000016]}       the batch of that version imitates a sample of each

    Each line is written before the action that it records, so a torn last line can be ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tasks: dict[int, None] = {}
        """Indices of the tasks that the team was given, in order."""
        self.batches: dict[int, list[int]] = {}
        for line in read_lines(path):
            if "task" in line:
                self.tasks[line["task"]] = None
            else:
                self.batches[line["version"]] = line["attempts"]

    def give(self, index: int) -> None:
        self.tasks[index] = None
        append_line(self._path, {"task": index})

    def imitate(self, version: int, attempts: list[int]) -> None:
        self.batches[version] = attempts
        append_line(self._path, {"version": version, "attempts": attempts})

    def go_back(self, version: int) -> None:
        """Removes the batches from that version on, which are formed anew."""
        self.batches = {batch: attempts for batch, attempts in self.batches.items() if batch < version}
        batches = [{"version": batch, "attempts": attempts} for batch, attempts in self.batches.items()]
        write_lines(self._path, [*({"task": index} for index in self.tasks), *batches])

    def imitated(self) -> Counter[int]:
        """Number of imitated samples by attempt."""
        return Counter(attempt for attempts in self.batches.values() for attempt in attempts)


@dataclass(frozen=True, slots=True)
class Imitation:
    attempt: int
    """Attempt number of the run that the sample is from."""
    sample: Sample


class TeacherFallback:
    """Plays offered tasks beside the loop, which takes for each batch the samples that are ready.

    A run is identified by the index of its task in the stage's stream: after a restart of the learners or of the job,
    the same task has the same run, whose replies are in the ledgers.
    """

    def __init__(self, run: RunDir, team: Teaching, models: Mapping[str, Handle]) -> None:
        config = run.config
        self._run, self._config, self._agent, self._team = run, config.rl.teacher_fallback, config.agent, team
        self._checkpoint_every = config.rl.checkpoint_every
        self._most = max(1, round(self._config.share * config.rl.window.groups_per_batch * config.rl.group))
        # Each run is filtered alone, so that runs of a task that fails again are not dropped as duplicates. Only the
        # winner's line of a debate is imitated.
        self._filters = replace(config.distill.filters, duplicates=DuplicateConfig(threshold=None, documents=1))
        self._contamination = contamination_of(run)
        self._review = Review(run, models, Filter(self._filters, self._contamination, further=False).flaw)
        self._codec = Codec.load(run.sft_model)
        self._folder = run.teachers / "fallback"
        self._before = sorted(self._folder.glob("transcripts-*.parquet"))
        """Files of transcripts that earlier drivers wrote, until `start` has read them."""
        self._journal = FallbackJournal(self._folder / "journal.jsonl")
        self._unplayed = dict(self._journal.tasks)
        """Tasks that an earlier driver gave to the team and whose outcome is not known yet."""
        self._written = len(self._before)
        team.finished = sum((names_in(path)[1] for path in self._before), Usage())
        in_flight = config.teaching.runs_in_flight
        self._room = asyncio.Semaphore(max(1, in_flight // self._config.attempts))
        self._failed_in_a_row = FailedInARow(config.teaching)
        self._flaws = Flaws(0 if plays_free(config.team) else config.teaching.same_flaw, useful=False)
        self.state = TeamState.up
        self._try_at = 0.0
        """When a team that is down gets its next task, by the event loop's clock."""
        self._playing = 0
        self._ready: deque[Imitation] = deque()
        self._taken: dict[int, list[Imitation]] = {}
        """Samples that a restart may return to the queue, by version of their batch."""
        self._ended: list[Graded] = []
        self.counts: Counter[str] = Counter()

    async def start(self, version: int, spawn: Spawn) -> None:
        """Restarts the fallback at `version`: samples assigned to that batch or a later one return to the queue, and
        tasks whose runs were unfinished are played again."""
        self._journal.go_back(version)
        back = [one for batch in sorted(self._taken) if batch >= version for one in self._taken.pop(batch)]
        self._ready.extendleft(reversed(back))
        imitated = self._journal.imitated()
        for path in self._before:
            for run in read_transcripts(path):
                attempt = run.transcript.attempt
                self._unplayed.pop(self._index(attempt), None)
                await self._end(run, imitated[attempt])
        for index in self._unplayed:
            self._begin(index, spawn)
        self._before, self._unplayed = [], {}

    def offer(self, group: GroupRecord, index: int, spawn: Spawn) -> None:
        """Gives the task to the team, beside the loop, if no episode of the group succeeded and not too many samples
        wait."""
        if not failed_altogether(group) or index in self._journal.tasks:
            return
        self.counts["failed altogether"] += 1
        if self.state is TeamState.down:
            if asyncio.get_running_loop().time() < self._try_at:
                self.counts["while the team was down"] += 1
                return
            self._wait_to_try()
        if self._playing + len(self._ready) >= self._most:
            return
        self._journal.give(index)
        self._begin(index, spawn)

    def _begin(self, index: int, spawn: Spawn) -> None:
        task = self._run.training_task(STAGE, index)
        first = FIRST_ATTEMPT + index * self._config.attempts
        attempts = range(first, first + self._config.attempts)
        self._playing += len(attempts)
        spawn(self._play([Assignment(task, attempt) for attempt in attempts]))

    def _index(self, attempt: int) -> int:
        return (attempt - FIRST_ATTEMPT) // self._config.attempts

    async def _play(self, assignments: Sequence[Assignment]) -> None:
        async with self._room:
            played = await self._team.play(assignments, self._review.judge)
        self._ended.extend(outcome for outcome in played.outcomes if isinstance(outcome, Graded))
        for outcome in played.outcomes:
            await self._end(outcome)
            self._playing -= 1

    async def _end(self, outcome: Outcome, imitated: int = 0) -> None:
        """Takes the outcome of a team run. imitated: number of its samples that batches imitate already."""
        if isinstance(outcome, Graded):
            outcome = await self._take_in(outcome, imitated)
        match outcome:
            case FailedRun(where=where):
                self.counts[where] += 1
                self._flaws.take(outcome, None)
            case Unfinished():
                self.counts["beyond the budget"] += 1
        self._judge_team(outcome)

    def _judge_team(self, outcome: Outcome) -> None:
        """Sets the state of the team. A team that is down costs imitations, and is no reason to end the stage."""
        self._failed_in_a_row.take(outcome)
        why = self._flaws.problem or self._failed_in_a_row.given_up
        if isinstance(outcome, Graded) and not self._flaws.problem:
            if self.state is TeamState.down:
                self._run.console.say("the teacher fallback's team is up again")
            self.state, self._failed_in_a_row = TeamState.up, FailedInARow(self._run.config.teaching)
        elif self.state is TeamState.up and why:
            self.state = TeamState.down
            self.counts["times the team was down"] += 1
            self._wait_to_try()
            self._run.console.say(f"the teacher fallback's team is down, and RL continues without it: {why}")

    def _wait_to_try(self) -> None:
        self._try_at = asyncio.get_running_loop().time() + TRY_AGAIN_S

    async def _take_in(self, run: Graded, imitated: int) -> Graded | FailedRun:
        """Returns the run, or a FailedRun if the endpoint of the rewriting model is down."""
        transcript = run.transcript
        kept, report = Filter(self._filters, self._contamination, further=False).take([run])
        try:
            revised = await self._review.revise(kept)
        except EndpointDown as error:
            assignment = Assignment(transcript.task, transcript.attempt)
            return FailedRun(assignment, type(error).__name__, str(error), run.usage)
        self.counts.update({"runs of the team": 1, **report.dropped})
        self._flaws.take(run, next(iter(report.dropped), None))
        samples = list(imitations(revised, self._codec, self._agent, self._config.weight))
        if kept and not samples:
            self.counts["too long"] += 1
        self._ready.extend(Imitation(transcript.attempt, sample) for sample in samples[imitated:])
        return run

    def take(self, version: int) -> list[Sample]:
        """Samples for the batch of `version`, oldest first; empty if nothing is ready. The journal is
        written before the batch is formed, and the runs themselves before the journal."""
        taken = [self._ready.popleft() for _ in range(min(self._most, len(self._ready)))]
        self._taken[version] = taken
        self.write()
        if taken:
            self._journal.imitate(version, [one.attempt for one in taken])
        return [one.sample for one in taken]

    def trained(self, version: int) -> int:
        """Called when the learners have made `version`; returns the number of samples imitated for it. Forgets samples
        from before the last checkpoint but one: no restart goes back further, and the last one may still be written."""
        checkpoint = ((version - 1) // self._checkpoint_every - 1) * self._checkpoint_every
        for batch in [batch for batch in self._taken if batch < checkpoint]:
            del self._taken[batch]
        return len(self._taken[version - 1])

    def write(self) -> None:
        """Writes the transcripts of team runs that ended since the last call."""
        if self._ended:
            write_transcripts(self._folder / f"transcripts-{self._written:05}.parquet", self._ended)
            self._written += 1
            self._ended = []

    def stats(self) -> Json:
        """Counts of this process; for the whole stage, the samples imitated and the usage of the team's runs."""
        spent = self._team.finished
        counts = {**self.counts, "imitated": self._journal.imitated().total(), "under way": self._playing}
        return {**counts, "requests": spent.requests, "tokens": spent.tokens, "team": self.state.value}


@asynccontextmanager
async def teacher_fallback(run: RunDir, tools: ToolClient) -> AsyncIterator[TeacherFallback | None]:
    """The fallback of the recipe; None if `rl.teacher_fallback.attempts` is 0."""
    if not run.config.rl.teacher_fallback.attempts:
        yield None
        return
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(language_models(run, models_of_fallback(run.config)))
        team = await stack.enter_async_context(teaching(run, tools, models))
        yield TeacherFallback(run, team, models)
    drop_ledgers(run)
