"""What teachers add to reinforcement: one that scores the policy's own tokens, and a team for what it fails altogether.

samples of a group --> Scoring (rl.on_policy) --> samples weighed token by token
a group that failed --> Rescue (rl.rescue) --> the team's run --> filter --> samples to imitate
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from actors.sizes import hub_name
from actors.teacher import Unfinished
from coa.codec import Codec
from coa.data.tokens import fingerprint
from coa.distill.duplicates import DuplicateConfig
from coa.distill.filters import Filter, filter_runs
from coa.errors import UserError
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
from jobs.run import Run
from jobs.teaching import FailedInARow, Teaching, drop_ledgers, language_models, models_of_team, teaching

FIRST_ATTEMPT = 1_000_000
"""Of the team at a task of this stage; those of distillation, which may have met the same task, are below."""


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


@dataclass(frozen=True, slots=True)
class Imitation:
    index: int
    """Of its task in the stage's stream."""
    sample: Sample


class Rescue:
    """Plays what is offered beside the loop, which takes samples for each batch as they come.

    A run is known by the index of its task in the stage's stream: after a restart, of the learners or of everything,
    the same task has the same run, whose replies stand in the ledgers.
    """

    def __init__(self, run: Run, team: Teaching, models: Mapping[str, Any]) -> None:
        config = run.config
        self._config, self._agent, self._team = config.rl.rescue, config.agent, team
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
        self._written = len(self._before)
        team.finished = sum((names_in(path)[1] for path in self._before), Usage())
        in_flight = config.teaching.runs_in_flight
        self._room = asyncio.Semaphore(max(1, in_flight // self._config.attempts))
        self._failed_in_a_row = FailedInARow(config.teaching)
        self._offered: set[int] = set()
        self._playing = 0
        self._ready: deque[Imitation] = deque()
        self._taken: dict[int, list[Imitation]] = {}
        """By batch, from the last checkpoint on."""
        self._ended: list[Graded] = []
        self.counts: Counter[str] = Counter()

    async def start(self, version: int, cursor: int) -> None:
        """The learners are at `version`, with the tasks from `cursor` on to come: what was taken for batches from there
        on waits again, and so do the runs of those tasks that a driver before this one left."""
        back = [one for batch in sorted(self._taken) if batch >= version for one in self._taken.pop(batch)]
        self._ready.extendleft(reversed(back))
        for path in self._before:
            for run in read_transcripts(path):
                if (index := self._index(run.transcript.attempt)) >= cursor:
                    self._offered.add(index)
                    await self._take_in(run)
        self._before = []

    def offer(self, group: GroupRecord, index: int, beside: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        """A task that the policy failed altogether goes to the team, `beside` the loop, unless enough of them wait."""
        if not failed_altogether(group) or index in self._offered:
            return
        self.counts["failed altogether"] += 1
        if self._playing + len(self._ready) >= self._most:
            return
        self._offered.add(index)
        first = FIRST_ATTEMPT + index * self._config.attempts
        attempts = range(first, first + self._config.attempts)
        self._playing += len(attempts)
        beside(self._play([Assignment(group.task, attempt) for attempt in attempts]))

    def _index(self, attempt: int) -> int:
        return (attempt - FIRST_ATTEMPT) // self._config.attempts

    async def _play(self, assignments: Sequence[Assignment]) -> None:
        async with self._room:
            played = await self._team.play(assignments, self._review.judge)
        self._playing -= len(assignments)
        for outcome in played.outcomes:
            self._failed_in_a_row.take(outcome)
            match outcome:
                case Graded():
                    self._ended.append(outcome)
                    await self._take_in(outcome)
                case FailedRun(where=where):
                    self.counts[where] += 1
                case Unfinished():
                    self.counts["beyond the budget"] += 1
            self._failed_in_a_row.check()

    async def _take_in(self, run: Graded) -> None:
        kept, report = filter_runs([run], self._filters, self._contamination)
        self.counts.update({"runs of the team": 1, **report.dropped})
        samples = list(imitations(await self._review.revise(kept), self._codec, self._agent, self._config.weight))
        if kept and not samples:
            self.counts["too long"] += 1
        index = self._index(run.transcript.attempt)
        self._ready.extend(Imitation(index, sample) for sample in samples)

    def take(self, version: int) -> list[Sample]:
        """For the batch of `version`, oldest first; empty where nothing is ready."""
        taken = [self._ready.popleft() for _ in range(min(self._most, len(self._ready)))]
        self._taken[version] = taken
        return [one.sample for one in taken]

    def trained(self, version: int) -> int:
        """The learners made `version`: the number of samples imitated for it. No restart goes back before the last
        checkpoint, so what was taken until then is done with."""
        checkpoint = (version - 1) // self._checkpoint_every * self._checkpoint_every
        for batch in [batch for batch in self._taken if batch < checkpoint]:
            self.counts["imitated"] += len(self._taken.pop(batch))
        return len(self._taken[version - 1])

    def write(self) -> None:
        """The team's runs since the last time, as they were said."""
        if self._ended:
            self._folder.mkdir(exist_ok=True)
            write_transcripts(self._folder / f"transcripts-{self._written:05}.parquet", self._ended)
            self._written += 1
            self._ended = []

    def told(self) -> dict[str, Any]:
        """Counts of this process, and what the team's runs took, over all."""
        spent = self._team.finished
        imitated = self.counts["imitated"] + sum(map(len, self._taken.values()))
        told = {**self.counts, "imitated": imitated, "under way": self._playing}
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
