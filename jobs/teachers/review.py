"""Language models that review finished runs: a judge of obedience, and a rewriter of the reflections of kept runs.

Each reply is kept (`actors.teachers.model`), so a resumed stage repeats no paid request. A request whose endpoint is
down is retried as often as a team run.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actors.handles import Handle
from actors.teachers.team import Outcome, TeachingConfig
from coa.distill.filters import Kept
from coa.distill.obedience import judge_obedience, options_of
from coa.distill.rewrite import rewrite
from coa.errors import EndpointDown, InfrastructureError
from coa.llm.ask import Ask, Message
from coa.llm.completions import Completion
from coa.teams.run import Assignment, FailedRun
from coa.teams.transcript import Graded
from jobs.run.run_dir import RunDir


class Review:
    """Judges and rewrites finished runs; does nothing if the recipe names no model for it."""

    def __init__(self, run: RunDir, models: Mapping[str, Handle], flaw: Callable[[Graded], str | None]) -> None:
        """flaw: the filter's rules that need no judge. A run that they drop is not sent to the judge."""
        config, seed, teaching = run.config.distill, run.config.seed, run.config.teaching
        self._flaw = flaw
        self._obedience = config.obedience
        self._judge = asking(models.get(config.obedience.model), seed, options_of(config.obedience), teaching)
        self._writer = asking(models.get(config.rewriting.model), seed, {}, teaching)
        self.rewritten: Counter[str] = Counter()
        """Number of texts by the outcome of their rewriting."""

    async def judge(self, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """Returns the outcomes, graded runs with the judge's objection; a run whose judge is down is a FailedRun."""
        return list(await asyncio.gather(*map(self._judged, outcomes)))

    async def _judged(self, outcome: Outcome) -> Outcome:
        if self._judge is None or not isinstance(outcome, Graded) or self._flaw(outcome):
            return outcome
        try:
            return await judge_obedience(outcome, self._judge, self._obedience)
        except InfrastructureError as error:
            transcript = outcome.transcript
            assignment = Assignment(transcript.task, transcript.attempt)
            return FailedRun(assignment, type(error).__name__, str(error), outcome.usage)

    async def revise(self, kept: list[Kept]) -> list[Kept]:
        """Returns the kept runs with rewritten texts; raises InfrastructureError if the model is down."""
        if self._writer is None:
            return kept
        kept, counts = await rewrite(kept, self._writer)
        self.rewritten += counts
        return kept


def asking(model: Handle | None, seed: int, options: Mapping[str, Any], teaching: TeachingConfig) -> Ask | None:
    """A `TeacherModel` as an `Ask` with retries; None if there is no model."""
    if model is None:
        return None

    async def ask(messages: Sequence[Message]) -> str:
        return (await complete(model, messages, seed, options, teaching)).text

    return ask


async def complete(
    model: Handle, messages: Sequence[Message], seed: int, options: Mapping[str, Any], teaching: TeachingConfig
) -> Completion:
    """The completion of a `TeacherModel`, with retries while its endpoint is down; raises InfrastructureError, with its
    usage, if there is none."""
    completion: Any = None
    for pause in teaching.pauses():
        await asyncio.sleep(pause)
        completion = await model.complete.remote(list(messages), seed, dict(options))
        if not isinstance(completion, EndpointDown):
            break
    if isinstance(completion, InfrastructureError):
        raise completion
    return completion
