"""The teacher team on Ray: an actor for each model, for each role played by scripted experts, and for the team.

    driver --- assignments ---> TeacherTeam --- messages ---> TeacherModel (limits, ledger) ---> an endpoint
           <-- graded runs ---    | ^       --- prompts ----> RoleAgent (scripted experts)
                                  v |
                               ToolExecutor

A role played by a language model has no actor: the team calls the model's actor. Every reply of a model and every
observation is in a ledger before a run continues, so a run that is replayed, because an actor, the driver or the
machine died, repeats no request except that of its answer's judge. A run that was ended by an infrastructure failure (a
tool or endpoint that is down) never becomes a transcript; it is played again after a pause, with the same seed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from uuid import uuid4

from actors.garbage import freeze_gc
from actors.handles import Handle
from coa.bounds import AtLeast1
from coa.concurrency import doubling
from coa.distill.grade import grade
from coa.errors import CallLost, DiskFull, EmptyCompletion, InfrastructureError, RequestRefused, UserError
from coa.llm.batching import CallBatcher
from coa.seeds import derive
from coa.storage.ledger import Ledger
from coa.teams.kinds import start
from coa.teams.play import play
from coa.teams.routing import Routes
from coa.teams.run import Assignment, FailedRun
from coa.teams.teams import EXPERTS, TeamConfig
from coa.teams.transcript import Graded, Mind, Prompt, Reply
from coa.tools.base import PLAIN, ToolCall
from coa.tools.client import Executor, ToolCaller
from coa.usage import Usage


@dataclass(frozen=True)
class BudgetConfig:
    """Budget of a team's models over all runs and restarts; 0 sets no limit. Requests under way when it is spent are
    still finished."""

    requests: int = 0
    """Maximum number of requests to language models; 0 sets no limit."""
    tokens: int = 0
    """Maximum number of tokens of prompts and replies; 0 sets no limit."""

    def exceeds(self, other: "BudgetConfig") -> bool:
        """Whether this budget allows more than the other."""
        mine, others = astuple(self), astuple(other)
        return any(theirs and (not own or own > theirs) for own, theirs in zip(mine, others, strict=True))

    def allows(self, spent: Usage) -> bool:
        within_requests = not self.requests or spent.requests < self.requests
        return within_requests and (not self.tokens or spent.tokens < self.tokens)


@dataclass(frozen=True)
class TeachingConfig:
    """Concurrency of team runs, retries after failures, and the budget."""

    wave: AtLeast1 = 1000
    """Number of runs in a wave of scripted experts, and maximum number of runs in one shard of transcripts."""
    runs_in_flight: AtLeast1 = 200
    """Number of runs that a team of language models plays at the same time."""
    shard_s: float = 60.0
    """Seconds after which finished runs of language models are written to a shard, even if there are fewer than
    `wave`."""
    reissues: int = 8
    """Maximum number of retries, after infrastructure failures, of a run or of a request of a judge or rewriter. With
    the default, no run is lost if an endpoint is down for up to three minutes."""
    reissue_after_s: float = 0.5
    """Seconds before the first retry; doubles for each further retry."""
    same_flaw: int = 40
    """Number of team runs of language models with the same flaw (wrong answers, the wrong form, no text) and without a
    useful run among them, after which distillation ends; until the first useful run, no more than this number are
    played at the same time. 0 sets no limit."""
    budget: BudgetConfig = BudgetConfig()
    """Maximum requests and tokens of the team's models in total, over all restarts. Requests under way when it is spent
    are finished."""

    def pauses(self) -> Iterator[float]:
        """Seconds to wait before each issue; 0 before the first."""
        return chain((0.0,), islice(doubling(self.reissue_after_s), self.reissues))


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that the budget stopped; its replies so far are in the ledgers."""

    assignment: Assignment
    usage: Usage = field(default_factory=Usage)
    """Usage of the run so far."""


Outcome = Graded | FailedRun | Unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The outcomes of assignments, in their order."""

    outcomes: list[Outcome]
    failures: dict[str, int]
    """Runs that infrastructure failures ended, by the type of the error; a reissued run counts each time."""


class BudgetSpent(Exception):
    """The budget allows no further request."""


class RoleAgent:
    """A role played by scripted experts, in a separate process; stateless, so that it may be restarted at any time."""

    def __init__(self, make_mind: Callable[[], Mind]) -> None:
        self._mind = make_mind()

    async def replies(self, prompts: list[Prompt]) -> list[Reply | InfrastructureError]:
        return await self._mind.replies(prompts)


def request_of(prompt: Prompt) -> tuple[list[dict[str, str]], int]:
    """The messages and the seed of the request to a language model.

    The seed depends on the messages: with one seed for all steps, a model would draw the same random numbers at each
    step and give the same reply to similar prompts.
    """
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    return messages, derive(prompt.seed, *(message.content for message in prompt.messages))


class TeacherTeam:
    """Plays assignments with the agents of its roles (handles of a `TeacherModel` or a `RoleAgent`) and tools. A
    tool call is known by its run and its place in the run, so that a restarted team joins the calls under way."""

    def __init__(
        self,
        team: TeamConfig,
        agents: Mapping[str, Handle],
        tools: Executor,
        config: TeachingConfig,
        *,
        models: tuple[tuple[str, str], ...] = (),
        seed: int,
        layouts: Sequence[str] = (PLAIN,),
        routes: Routes | None = None,
        ledger: Path | None = None,
    ) -> None:
        """models: (role, model) pairs for transcripts. routes: choose the kind of team for a question; None takes the
        kind of the team's rules. ledger: folder in which observations are kept until the stage
        ends; None keeps none, for scripted experts, whose replies cost nothing."""
        freeze_gc()
        self._team, self._config, self._seed, self._layouts = team, config, seed, tuple(layouts)
        self._models, self._routes = models, routes
        self._ask_of = {role: self._asking(role, agent) for role, agent in agents.items()}
        self._tools = ToolCaller(tools, f"team {uuid4().hex}")
        self._ledger = Ledger(ledger) if ledger is not None else None
        self._spent = Usage()
        """Usage of all runs, including runs under way and runs before a restart."""
        self._open: dict[tuple[str, int], Usage] = {}
        """Usage by run under way since its last retry began; a retry counts kept replies again."""

    async def play(self, assignments: Sequence[Assignment], finished: Usage | None = None) -> Played:
        """Plays runs. finished: usage of all runs that have ended, including those before a restart; a restarted actor
        computes the remaining budget from it."""
        # A restarted actor may get calls that were made before later runs ended.
        self._spent = Usage(*map(max, astuple(self._spent), astuple(finished or Usage())))
        failures: Counter[str] = Counter()
        outcomes = await asyncio.gather(*(self._play(assignment, failures) for assignment in assignments))
        return Played(outcomes=outcomes, failures=dict(failures))

    async def _play(self, assignment: Assignment, failures: Counter[str]) -> Outcome:
        name = (assignment.task.id, assignment.attempt)
        failed = FailedRun(assignment, "", "")
        try:
            for pause in self._config.pauses():
                await asyncio.sleep(pause)
                self._spent -= self._open.get(name, Usage())
                self._open[name] = Usage()
                try:
                    return await self._once(assignment)
                except DiskFull:
                    raise  # the fault of no run
                except (RequestRefused, EmptyCompletion, CallLost) as error:  # it would end in the same way again
                    failures[type(error).__name__] += 1
                    return FailedRun(assignment, type(error).__name__, str(error), self._open[name])
                except InfrastructureError as error:
                    failed = FailedRun(assignment, type(error).__name__, str(error), self._open[name])
                    failures[failed.where] += 1
            return failed
        except BudgetSpent:
            return Unfinished(assignment, self._open[name])
        finally:
            self._open.pop(name, None)

    async def _once(self, assignment: Assignment) -> Graded:
        name = (assignment.task.id, assignment.attempt)

        async def ask(prompt: Prompt) -> Reply:
            if not self._config.budget.allows(self._spent):
                raise BudgetSpent
            try:
                reply = await self._ask_of[prompt.role](prompt)
            except InfrastructureError as error:
                self._take(name, error.usage)
                raise
            self._take(name, reply.usage)
            return reply

        async def use(call: ToolCall, key: str) -> str:
            return await self._observe(call, f"{name[0]}/{name[1]}/{key}")

        team = self._team
        if self._routes is not None:
            team = replace(team, rules=self._routes.choose(assignment.task.question), learn_from=())
        run = start(assignment, team, seed=self._seed, layouts=self._layouts)
        return await grade(await play(run, ask, use, self._models), self._tools.in_order(("grade", *name)))

    def _take(self, name: tuple[str, int], usage: Usage) -> None:
        if usage.requests:
            self._open[name] += usage
            self._spent += usage

    async def _observe(self, call: ToolCall, key: str) -> str:
        if self._ledger is None:
            return await self._tools.finish(key, call)
        kept = self._ledger.get(key)
        if kept is not None and kept[:2] == [call.tool, call.argument]:
            return kept[2]
        observation = str(await self._tools.finish(key, call))
        self._ledger.put(key, [call.tool, call.argument, observation])
        return observation

    def _asking(self, role: str, agent: Handle) -> Callable[[Prompt], Awaitable[Reply]]:
        async def many(prompts: Sequence[Prompt]) -> Sequence[Reply | InfrastructureError]:
            return await agent.replies.remote(list(prompts))

        async def one(prompt: Prompt) -> Reply:  # not batched: no reply waits for another
            try:
                completion = await agent.complete.remote(*request_of(prompt))
            except UserError as error:  # Ray wraps it and adds a traceback
                raise UserError(str(getattr(error, "cause", error))) from None
            if isinstance(completion, InfrastructureError):
                raise completion
            return Reply(completion.text, completion.usage)

        return CallBatcher(many) if self._team.model_of(role) == EXPERTS else one
