"""What teachers add to reinforcement: one that scores the policy's own tokens, and a team for what it fails altogether.

samples of a group --> Scoring (rl.on_policy) --> samples weighed token by token
a group that failed --> Rescue (rl.rescue) --> the team's run --> filter --> samples to imitate
"""

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from actors.sizes import hub_name
from actors.teacher import Outcome, Unfinished
from coa.codec import Codec
from coa.data.tokens import fingerprint
from coa.distill.duplicates import DuplicateConfig
from coa.distill.filters import Filter, filter_runs
from coa.errors import EndpointDown, UserError
from coa.files import write_atomically
from coa.rescue import failed_altogether, imitations
from coa.rollout import GroupRecord
from coa.teachers.run import Assignment, FailedRun
from coa.teachers.store import names_in, read_transcripts, write_transcripts
from coa.teachers.transcript import Graded
from coa.types import Sample
from coa.usage import Usage
from jobs.distill import contamination_of, models_of_review
from jobs.recipe import Recipe
from jobs.review import Review
from jobs.rl_book import STAGE
from jobs.run import Run
from jobs.teaching import FailedInARow, Teaching, drop_ledgers, language_models, models_of_team, teaching

FIRST_ATTEMPT = 1_000_000
"""Of the team at a task of this stage; those of distillation, which may have met the same task, are below."""
Beside = Callable[[Coroutine[Any, Any, None]], Any]
"""Runs work next to the loop."""


class Scoring:
    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer

    async def weigh(self, samples: Any) -> tuple[float, Any]:
        """Takes the reference of a group's samples; the mean reverse KL, and the reference of the weighed ones."""
        divergence, weighed = self._scorer.weigh.options(num_returns=2).remote(samples)
        return await divergence, weighed


@asynccontextmanager
async def scoring(run: Run) -> AsyncIterator[Scoring | None]:
    """None where the recipe names no teacher. Raises UserError for one that writes in other tokens."""
    from actors.scorer import Scorer

    config, placement = run.config.rl, run.config.placement
    teacher = config.on_policy.teacher
    if teacher is None:
        yield None
        return
    if not hub_name(teacher):
        teacher = str(Path(teacher).resolve())
    if fingerprint(Codec.load(teacher)) != fingerprint(Codec.load(run.sft_model)):
        raise UserError(f"rl.on_policy.teacher: {teacher} has another tokenizer than the policy")
    scorer: Any = (
        ray.remote(Scorer)
        .options(num_cpus=placement.scorer_cpus, num_gpus=placement.scorer_gpus, max_restarts=-1, max_task_retries=-1)
        .remote(
            teacher,
            run.config.model,
            config.on_policy,
            row_tokens=config.learner.packing.row_tokens,
            threads=config.learner.threads,
        )
    )
    try:
        if mistake := await scorer.mistake.remote():
            raise UserError(mistake)
        yield Scoring(scorer)
    finally:
        ray.kill(scorer)


class RescueBook:
    """What the team was given, and which batch imitates what came of it, in a file with a line for each.

        {"task": 17}                                         of the stage's stream, by its index: the team has it now
        {"version": 3, "attempts": [1000016, 1000016]}       a sample of each is imitated by the batch of that version

    A line is there before what it says happens, so one that a kill cut off counts for nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.tasks: dict[int, None] = {}
        """In order."""
        self.batches: dict[int, list[int]] = {}
        for line in path.read_text().split("\n")[:-1] if path.exists() else []:
            told = json.loads(line)
            if "task" in told:
                self.tasks[told["task"]] = None
            else:
                self.batches[told["version"]] = told["attempts"]

    def give(self, index: int) -> None:
        self.tasks[index] = None
        self._add(_line(task=index))

    def imitate(self, version: int, attempts: list[int]) -> None:
        self.batches[version] = attempts
        self._add(_line(version=version, attempts=attempts))

    def go_back(self, version: int) -> None:
        """Batches from that version on are formed anew."""
        self.batches = {batch: attempts for batch, attempts in self.batches.items() if batch < version}
        lines = [_line(task=index) for index in self.tasks]
        lines += [_line(version=batch, attempts=attempts) for batch, attempts in self.batches.items()]
        write_atomically(self._path, "".join(lines))

    def imitated(self) -> Counter[int]:
        """Samples, by the attempt that they are of."""
        return Counter(attempt for attempts in self.batches.values() for attempt in attempts)

    def _add(self, line: str) -> None:
        with self._path.open("a") as file:
            file.write(line)


def _line(**told: Any) -> str:
    return json.dumps(told) + "\n"


@dataclass(frozen=True, slots=True)
class Imitation:
    attempt: int
    """Of the run that it is a sample of."""
    sample: Sample


class Rescue:
    """Plays what is offered beside the loop, which takes samples for each batch as they come.

    A run is known by the index of its task in the stage's stream: after a restart, of the learners or of everything,
    the same task has the same run, whose replies stand in the ledgers.
    """

    def __init__(self, run: Run, team: Teaching, models: Mapping[str, Any]) -> None:
        config = run.config
        self._run, self._config, self._agent, self._team = run, config.rl.rescue, config.agent, team
        self._checkpoint_every = config.rl.checkpoint_every
        self._most = max(1, round(self._config.share * config.rl.window.groups_per_batch * config.rl.group))
        # Each run is filtered alone: a task that fails again is shown again.
        self._filters = replace(config.distill.filters, duplicates=DuplicateConfig(threshold=None, documents=1))
        self._contamination = contamination_of(run)
        self._review = Review(run, models, Filter(self._filters, self._contamination).flaw)
        self._codec = Codec.load(run.sft_model)
        self._folder = run.teachers / "rescue"
        self._before = sorted(self._folder.glob("transcripts-*.parquet"))
        """Written by a driver before this one, until they are taken in."""
        self._book = RescueBook(self._folder / "book.jsonl")
        self._unplayed = dict(self._book.tasks)
        """Tasks that a driver before this one gave to the team, until it is known what became of them."""
        self._written = len(self._before)
        team.finished = sum((names_in(path)[1] for path in self._before), Usage())
        in_flight = config.teaching.runs_in_flight
        self._room = asyncio.Semaphore(max(1, in_flight // self._config.attempts))
        self._failed_in_a_row = FailedInARow(config.teaching)
        self._playing = 0
        self._ready: deque[Imitation] = deque()
        self._taken: dict[int, list[Imitation]] = {}
        """By batch, from the last checkpoint on."""
        self._ended: list[Graded] = []
        self.counts: Counter[str] = Counter()

    async def start(self, version: int, beside: Beside) -> None:
        """The learners are at `version`: all that no batch before it imitates waits again, be it taken for one from
        there on or left by a driver before this one, whose tasks that were under way are played again."""
        self._book.go_back(version)
        back = [one for batch in sorted(self._taken) if batch >= version for one in self._taken.pop(batch)]
        self._ready.extendleft(reversed(back))
        imitated = self._book.imitated()
        for path in self._before:
            for run in read_transcripts(path):
                attempt = run.transcript.attempt
                self._unplayed.pop(self._index(attempt), None)
                await self._end(run, imitated[attempt])
        for index in self._unplayed:
            self._begin(index, beside)
        self._before, self._unplayed = [], {}

    def offer(self, group: GroupRecord, index: int, beside: Beside) -> None:
        """A task that the policy failed altogether goes to the team, `beside` the loop, unless enough of them wait."""
        if not failed_altogether(group) or index in self._book.tasks:
            return
        self.counts["failed altogether"] += 1
        if self._playing + len(self._ready) >= self._most:
            return
        self._book.give(index)
        self._begin(index, beside)

    def _begin(self, index: int, beside: Beside) -> None:
        task = self._run.training_task(STAGE, index)
        first = FIRST_ATTEMPT + index * self._config.attempts
        attempts = range(first, first + self._config.attempts)
        self._playing += len(attempts)
        beside(self._play([Assignment(task, attempt) for attempt in attempts]))

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
        """What comes of a run of the team, of which so many samples are imitated already."""
        if isinstance(outcome, Graded):
            outcome = await self._take_in(outcome, imitated)
        match outcome:
            case FailedRun(where=where):
                self.counts[where] += 1
            case Unfinished():
                self.counts["beyond the budget"] += 1
        self._failed_in_a_row.take(outcome)
        self._failed_in_a_row.check()

    async def _take_in(self, run: Graded, imitated: int) -> Graded | FailedRun:
        """The run, or how it failed where who is to rewrite it is down."""
        transcript = run.transcript
        kept, report = filter_runs([run], self._filters, self._contamination)
        try:
            revised = await self._review.revise(kept)
        except EndpointDown as error:
            assignment = Assignment(transcript.task, transcript.attempt)
            return FailedRun(assignment, type(error).__name__, str(error), run.usage)
        self.counts.update({"runs of the team": 1, **report.dropped})
        samples = list(imitations(revised, self._codec, self._agent, self._config.weight))
        if kept and not samples:
            self.counts["too long"] += 1
        self._ready.extend(Imitation(transcript.attempt, sample) for sample in samples[imitated:])
        return run

    def take(self, version: int) -> list[Sample]:
        """For the batch of `version`, oldest first; empty where nothing is ready. What the batch imitates is written
        before it is formed, the runs themselves first."""
        taken = [self._ready.popleft() for _ in range(min(self._most, len(self._ready)))]
        self._taken[version] = taken
        self.write()
        if taken:
            self._book.imitate(version, [one.attempt for one in taken])
        return [one.sample for one in taken]

    def trained(self, version: int) -> int:
        """The learners made `version`: the number of samples imitated for it. No restart goes back before the last
        checkpoint, so what was taken until then is done with."""
        checkpoint = (version - 1) // self._checkpoint_every * self._checkpoint_every
        for batch in [batch for batch in self._taken if batch < checkpoint]:
            del self._taken[batch]
        return len(self._taken[version - 1])

    def write(self) -> None:
        """The team's runs since the last time, as they were said."""
        if self._ended:
            write_transcripts(self._folder / f"transcripts-{self._written:05}.parquet", self._ended)
            self._written += 1
            self._ended = []

    def told(self) -> dict[str, Any]:
        """Counts of this process; over all, the samples imitated and what the team's runs took."""
        spent = self._team.finished
        told = {**self.counts, "imitated": self._book.imitated().total(), "under way": self._playing}
        return {**told, "requests": spent.requests, "tokens": spent.tokens}


@asynccontextmanager
async def rescuing(run: Run, executors: Sequence[Any]) -> AsyncIterator[Rescue | None]:
    """None where the recipe wants no attempts of the team."""
    if not run.config.rl.rescue.attempts:
        yield None
        return
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(language_models(run, models_of_rescue(run.config)))
        team = await stack.enter_async_context(teaching(run, executors, models))
        yield Rescue(run, team, models)
    drop_ledgers(run)


def models_of_rescue(config: Recipe) -> set[str]:
    """Keys of the recipe's `models`; empty where nothing is rescued."""
    return models_of_team(config) | models_of_review(config) if config.rl.rescue.attempts else set()
