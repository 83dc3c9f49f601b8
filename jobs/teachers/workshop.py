"""Makes questions of passages in waves, and lets the team solve them.

    passages -> drafts, new ones -> checked, as deep as they get -> a share of them merged -> solved by the team

One step is finished for all questions of a wave before the next one begins. So what is made depends on the replies
alone, and not on the order in which they come; with a larger number of tasks the same ones come first.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeVar

from actors.handles import Handle
from actors.teachers.model import key_of
from actors.teachers.team import BudgetSpent, Unfinished
from coa.concurrency import together
from coa.distill.contamination import Contamination
from coa.distill.duplicates import Duplicates
from coa.errors import InfrastructureError
from coa.llm.ask import Message
from coa.seeds import derive, shuffled
from coa.storage.chunks import chunks
from coa.tasks.loading import load
from coa.tasks.made.maker import Maker, Refused
from coa.tasks.made.questions import Question
from coa.tasks.made.world import DocumentsSettings
from coa.teams.run import Assignment, FailedRun
from coa.teams.transcript import Graded
from coa.tools.layouts import Passage
from coa.tools.search.wiki import Index
from coa.usage import Usage
from jobs.run.console import Stage
from jobs.run.run_dir import RunDir
from jobs.teachers.review import complete
from jobs.teachers.teaching import Teaching

T = TypeVar("T")

WAVE = 16
"""Maximum number of questions that are worked on at the same time; the next wave begins when all of them are done."""
AT_ONCE = 16
"""Passages for which questions are proposed at the same time."""
FRUITLESS = 200
"""Passages without a question that is of use, after which the model counts as unable to make any."""
FOUND = 20
"""Passages that a search for a name returns."""

UNSOLVED = "the team does not solve it"
NOT_PLAYED = "a failure ended the team's run"
BUDGET = "budget"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A question for the team."""

    question: Question
    otherwise: tuple["Candidate", ...] = ()
    """The simpler ones that it was made of, which are tried if the team does not solve it."""


@dataclass(frozen=True, slots=True)
class Solved:
    question: Question
    run: Graded
    """The team's right run."""


@dataclass(slots=True)
class Tally:
    """What has been made so far."""

    made: list[Solved] = field(default_factory=list)
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of questions that were dropped, by reason."""
    not_deepened: Counter[str] = field(default_factory=Counter)
    """Number of questions that were kept as they were, by the reason why they did not get deeper."""
    not_merged: Counter[str] = field(default_factory=Counter)
    passages: int = 0
    candidates: int = 0
    stopped: str = ""
    costs: dict[str, Usage] = field(default_factory=dict)
    """Usage of the requests about a question, by its id."""

    def pay(self, usage: Usage) -> None:
        about = ABOUT.get()
        self.costs[about] = self.costs.get(about, Usage()) + usage


ABOUT: ContextVar[str] = ContextVar("about", default="")
"""Id of the question that requests of this task of the event loop are about."""


class Workshop:
    """The passages that are left, and the drafts of a next wave."""

    def __init__(
        self, run: RunDir, team: Teaching, model: Handle, passages: Sequence[Passage], index: Index, tally: Tally
    ) -> None:
        self._config, self._team, self._model, self._tally = run.config, team, model, tally
        order = (shuffled(n, len(passages), run.config.seed, "tasks") for n in range(len(passages)))
        self._chunks = chunks(order, AT_ONCE)
        self._passages_left = len(passages)
        self._drafts: list[Question] = []
        """Questions that were proposed for a later wave."""
        self._single = self._in_pairs = 0
        """Number of questions so far that have one passage, and of those that were merged or tried to be."""
        assert isinstance(run.config.world, DocumentsSettings)
        self._settings = run.config.world
        rows = {passage: row for row, passage in enumerate(passages)}

        async def find(query: str) -> Sequence[tuple[int, Passage]]:
            found = [replace(one, score=0.0) for one in await asyncio.to_thread(index.search, query, FOUND)]
            return [(rows[passage], passage) for passage in found]

        self._maker = Maker(
            ask=self._ask,
            find=find,
            passages=passages,
            per_passage=self._settings.per_passage,
            tries=self._settings.tries,
        )
        self._paid: set[str] = set()
        self._permits = asyncio.Semaphore(run.config.teaching.runs_in_flight)
        filters, profile = run.config.distill.filters, self._settings.profile
        named = (task.question for spec in run.config.distill.against for task in load(spec, profile=profile))
        self._contamination = Contamination.of(named, filters.contamination_words)
        self._duplicates = Duplicates(filters.duplicates)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing left to make questions of."""
        return not self._drafts and not self._may_propose

    @property
    def _may_propose(self) -> bool:
        """Whether there are passages left, and the model makes something of them."""
        tally = self._tally
        return self._passages_left > 0 and (tally.passages < FRUITLESS or tally.candidates > 0)

    async def play_wave(self, room: int, stage: Stage) -> list[Solved]:
        """Makes the next questions; returns the first `room` that the team solves, in order."""
        tally = self._tally
        drafts = await self._next_drafts(stage)
        stage.phase(f"{len(drafts)} questions are answered, from the passages and without them")
        checked = await together(self._in_budget(draft.id, self._checked(draft)) for draft in drafts)
        candidates = await self._merged([one for one in checked if one is not None])
        tally.candidates += len(candidates)
        stage.phase(f"the team works on {len(candidates)} questions")
        solved = await together(self._in_budget(one.question.id, self._solved(one)) for one in candidates)
        right = [one for some in solved for one in some or ()][:room]
        tally.made += right
        stage.update(len(tally.made), passages=tally.passages, dropped=tally.dropped.total())
        return right

    async def _next_drafts(self, stage: Stage) -> list[Question]:
        while len(self._drafts) < WAVE and self._may_propose and not self._tally.stopped:
            stage.phase("questions are proposed", f"for {self._tally.passages} passages so far")
            rows = next(self._chunks)
            work = (self._in_budget(f"passage {row}", self._maker.propose(row)) for row in rows)
            self._drafts += self._new(await together(work))
            self._tally.passages += len(rows)
            self._passages_left -= len(rows)
        drafts, self._drafts = self._drafts[:WAVE], self._drafts[WAVE:]
        return drafts

    def _new(self, proposed: Iterable[Sequence[Question | Refused] | None]) -> list[Question]:
        """The questions that are neither in an evaluation set nor like an earlier one."""
        found: list[Question] = []
        for one in (one for some in proposed for one in some or ()):
            if isinstance(one, Refused):
                self._tally.dropped[one.why] += 1
                continue
            why = self._contamination.reason(one.text)
            why = why or self._duplicates.take(one.id, one.text, one.answers[0], ())
            if why:
                self._tally.dropped[why] += 1
            else:
                found.append(one)
        return found

    async def _checked(self, draft: Question) -> Candidate | None:
        """The draft, as deep as it gets; None if it is of no use."""
        if why := await self._maker.flaw(draft):
            self._tally.dropped[why] += 1
            return None
        found = Candidate(draft)
        for _ in range(1, self._settings.hops):
            further = await self._maker.deepen(found.question)
            if isinstance(further, Refused):
                self._tally.not_deepened[further.why] += 1
                break
            found = Candidate(further, (found,))
        return found

    async def _merged(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates, a share of those with one passage in pairs."""
        single = [one for one in candidates if len(one.question.evidence) == 1]
        self._single += len(single)
        pairs = pairs_of(single, int(self._settings.merged * self._single - self._in_pairs) // 2)
        self._in_pairs += 2 * len(pairs)

        async def merge(one: Candidate, other: Candidate) -> Candidate | None:
            made = await self._maker.widen(one.question, other.question)
            if isinstance(made, Refused):
                self._tally.not_merged[made.why] += 1
                return None
            return Candidate(made, (one, other))

        merged = await together(self._in_budget(one.question.id, merge(one, other)) for one, other in pairs)
        parts = {id(part) for found in merged if found for part in found.otherwise}
        return [*(one for one in candidates if id(one) not in parts), *(one for one in merged if one is not None)]

    async def _solved(self, candidate: Candidate) -> list[Solved]:
        """What the team solves of a candidate: it, or else what it was made of."""
        ABOUT.set(candidate.question.id)
        task = candidate.question.task(self._settings.profile)
        why = UNSOLVED
        for attempt in range(self._settings.team_tries):
            async with self._permits:
                played = await self._team.play([Assignment(task, attempt)])
            [outcome] = played.outcomes
            self._tally.pay(outcome.usage)
            match outcome:
                case Graded(correct=True):
                    return [Solved(candidate.question, outcome)]
                case Unfinished():
                    raise BudgetSpent
                case FailedRun():
                    why = NOT_PLAYED
                    break
        self._tally.dropped[why] += 1
        simpler = [await self._solved(one) for one in candidate.otherwise]
        return [one for some in simpler for one in some]

    async def _in_budget(self, about: str, work: Awaitable[T]) -> T | None:
        """The result of work about a question; None if the budget ended it."""
        ABOUT.set(about)
        try:
            return await work
        except BudgetSpent:
            self._tally.stopped = BUDGET
            return None

    async def _ask(self, messages: Sequence[Message], attempt: int | None = None) -> str:
        if not self._config.teaching.budget.allows(self._team.finished):
            raise BudgetSpent
        seed = self._config.seed if attempt is None else derive(self._config.seed, "alone", attempt)
        options = {"temperature": 0.0 if attempt is None else 1.0}
        request = key_of(self._config.team.model, messages, seed, options)
        try:
            completion = await complete(self._model, messages, seed, options, self._config.teaching)
        except InfrastructureError as error:
            self._pay(request, error.usage)
            raise
        self._pay(request, completion.usage)
        return completion.text

    def _pay(self, request: str, usage: Usage) -> None:
        """Counts the usage of a request, the first time that it is made: its reply is kept."""
        if request in self._paid:
            return
        self._paid.add(request)
        self._team.finished += usage
        self._tally.pay(usage)


def pairs_of(candidates: Sequence[Candidate], most: int) -> list[tuple[Candidate, Candidate]]:
    """At most so many pairs of neighbours with different passages and answers."""
    pairs: list[tuple[Candidate, Candidate]] = []
    rest = list(candidates)
    while len(rest) > 1 and len(pairs) < most:
        one, other = rest.pop(0), rest.pop(0)
        first, second = one.question, other.question
        if first.passages != second.passages and first.answers != second.answers:
            pairs.append((one, other))
    return pairs
