"""What teachers add to reinforcement: one that scores the policy's own tokens, and a team for what it fails altogether.

samples of a group --> Scoring (rl.on_policy) --> samples weighed token by token
a group that failed --> Rescue (rl.rescue) --> the team's run --> filter --> samples to imitate
"""

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from actors.sizes import hub_name
from actors.teacher import Unfinished
from coa.codec import Codec
from coa.data.tokens import fingerprint
from coa.distill.contamination import Contamination
from coa.distill.duplicates import DuplicateConfig
from coa.distill.filters import filter_runs
from coa.errors import UserError
from coa.rescue import failed_altogether, imitations
from coa.rollout import GroupRecord
from coa.teachers.run import Assignment, FailedRun
from coa.teachers.store import names_in, write_transcripts
from coa.teachers.transcript import Graded
from coa.types import Sample
from coa.usage import Usage
from jobs.distill import evaluation_questions
from jobs.run import Run
from jobs.teaching import Teaching, drop_ledgers, language_models, models_of_team, teaching

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


class Rescue:
    """Plays what is offered beside the loop, which takes samples for each batch as they come."""

    def __init__(self, run: Run, team: Teaching) -> None:
        config = run.config
        self._config, self._agent, self._team = config.rl.rescue, config.agent, team
        self._most = max(1, round(self._config.share * config.rl.window.groups_per_batch * config.rl.group))
        # Each run is filtered alone: a task that fails again is shown again.
        self._filters = replace(config.distill.filters, duplicates=DuplicateConfig(threshold=None, documents=1))
        self._contamination = Contamination.of(evaluation_questions(run), self._filters.contamination_words)
        self._codec = Codec.load(run.sft_model)
        self._folder = run.teachers / "rescue"
        written = sorted(self._folder.glob("transcripts-*.parquet"))
        self._written = len(written)
        team.finished = sum((names_in(path)[1] for path in written), Usage())
        self._asked = 0
        self._playing = 0
        self._ready: deque[Sample] = deque()
        self._ended: list[Graded] = []
        self.counts: Counter[str] = Counter()

    def offer(self, group: GroupRecord, beside: Callable[[Coroutine[Any, Any, None]], Any]) -> None:
        """A task that the policy failed altogether goes to the team, `beside` the loop, unless enough of them wait."""
        if not failed_altogether(group):
            return
        self.counts["failed altogether"] += 1
        if self._playing + len(self._ready) >= self._most:
            return
        attempts = range(self._asked, self._asked + self._config.attempts)
        self._asked, self._playing = attempts.stop, self._playing + len(attempts)
        beside(self._play([Assignment(group.task, FIRST_ATTEMPT + attempt) for attempt in attempts]))

    async def _play(self, assignments: Sequence[Assignment]) -> None:
        played = await self._team.play(assignments)
        self._playing -= len(assignments)
        for outcome in played.outcomes:
            match outcome:
                case Graded():
                    self._take_in(outcome)
                case FailedRun(where=where):
                    self.counts[where] += 1
                case Unfinished():
                    self.counts["beyond the budget"] += 1

    def _take_in(self, run: Graded) -> None:
        self._ended.append(run)
        kept, report = filter_runs([run], self._filters, self._contamination)
        self.counts.update({"runs of the team": 1, **report.dropped})
        samples = list(imitations(kept, self._codec, self._agent, self._config.weight))
        self.counts["too long"] += bool(kept) and not samples
        self._ready.extend(samples)

    def take(self) -> list[Sample]:
        """For the next batch, oldest first; empty where nothing is ready."""
        samples = [self._ready.popleft() for _ in range(min(self._most, len(self._ready)))]
        self.counts["imitated"] += len(samples)
        return samples

    def put_back(self, samples: Sequence[Sample]) -> None:
        """What was taken for a batch that nobody trained."""
        self._ready.extendleft(reversed(samples))
        self.counts["imitated"] -= len(samples)

    def write(self) -> None:
        """The team's runs since the last time, as they were said."""
        if self._ended:
            self._folder.mkdir(exist_ok=True)
            write_transcripts(self._folder / f"transcripts-{self._written:05}.parquet", self._ended)
            self._written += 1
            self._ended = []

    def told(self) -> dict[str, Any]:
        spent = self._team.finished
        return {**self.counts, "requests": spent.requests, "tokens": spent.tokens}


@asynccontextmanager
async def rescuing(run: Run, executors: Sequence[Any]) -> AsyncIterator[Rescue | None]:
    """None where the recipe wants no attempts of the team."""
    if not run.config.rl.rescue.attempts:
        yield None
        return
    async with AsyncExitStack() as stack:
        models = await stack.enter_async_context(language_models(run, models_of_team(run.config)))
        yield Rescue(run, await stack.enter_async_context(teaching(run, executors, models)))
    drop_ledgers(run)
