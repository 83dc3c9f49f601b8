"""The teacher team on Ray: an actor for each model, one for each role that scripted experts play, one that plays runs.

    driver --- assignments ---> TeacherTeam --- messages ---> TeacherModel (limits, ledger) ---> an endpoint
           <-- graded runs ---    | ^       --- prompts ----> RoleAgent (scripted experts)
                                  v |
                               ToolExecutor

A role that thinks with a model has the model's actor: between the two there is nothing to do but to pass a prompt on.
Every reply of a model and every observation is in a ledger before a run goes on, so that a run which is played again,
because an actor, the driver or the machine died, asks for nothing twice; only a judge of its answer is asked again. A
run that infrastructure ended (a tool or an endpoint that is down) is issued again after a pause, with the same seed,
and never becomes a transcript.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from ray.exceptions import RayError, RayTaskError

from coa.distill.grade import grade
from coa.errors import DiskFull, InfrastructureError, RequestRefused, ToolDown, UserError
from coa.gather import Gather
from coa.heap import freeze
from coa.ledger import Ledger
from coa.seeds import derive
from coa.teachers.play import play, start
from coa.teachers.run import Assignment, FailedRun
from coa.teachers.teams import EXPERTS, TeamConfig
from coa.teachers.transcript import Graded, Mind, Prompt, Reply
from coa.tools.base import PLAIN, ToolCall
from coa.tools.client import ToolClient
from coa.usage import Usage


@dataclass(frozen=True)
class BudgetConfig:
    """What the models of a team may take, over all runs and restarts; 0 is no limit. Requests under way when it is
    spent are still finished."""

    requests: int = 0
    tokens: int = 0

    def exceeds(self, other: "BudgetConfig") -> bool:
        """Whether more may be taken under this one."""
        mine, others = astuple(self), astuple(other)
        return any(theirs and (not own or own > theirs) for own, theirs in zip(mine, others, strict=True))

    def allows(self, spent: Usage) -> bool:
        within_requests = not self.requests or spent.requests < self.requests
        return within_requests and (not self.tokens or spent.tokens < self.tokens)


@dataclass(frozen=True)
class TeachingConfig:
    wave: int = 1000
    """Runs that scripted experts play in step with each other, and most runs of a shard."""
    waves_in_flight: int = 2
    runs_in_flight: int = 200
    """Runs that a team of language models plays at the same time."""
    shard_s: float = 60.0
    """Seconds after which finished runs of language models are written, if less than a wave of them is there."""
    reissues: int = 8
    """How often a run that infrastructure ended, or a request about a finished one, is issued again before it is given
    up: an endpoint that comes back within some three minutes costs no run."""
    reissue_after_s: float = 0.5
    """Wait before the first reissue, in seconds; it doubles from one to the next."""
    cpus_per_agent: float = 0.0
    """What each actor of a role, a model, and the team asks of Ray."""
    budget: BudgetConfig = BudgetConfig()

    def pauses(self) -> Iterator[float]:
        """Seconds before each issue, of which the first waits for nothing."""
        yield 0.0
        for reissue in range(self.reissues):
            yield self.reissue_after_s * 2**reissue


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A run that the budget stopped; what it has is in the ledgers."""

    assignment: Assignment
    usage: Usage = field(default_factory=Usage)
    """What it took."""


Outcome = Graded | FailedRun | Unfinished


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What became of assignments, in their order."""

    outcomes: list[Outcome]
    failures: dict[str, int]
    """Runs that infrastructure ended, by the type of its error; reissued runs count each time."""


class BudgetSpent(Exception):
    """No further request may be sent."""


class RoleAgent:
    """One role's mind in a process of its own. Stateless, so that it may be restarted and its calls retried."""

    def __init__(self, make_mind: Callable[[], Mind]) -> None:
        self._mind = make_mind()

    async def replies(self, prompts: list[Prompt]) -> list[Reply | InfrastructureError]:
        return await self._mind.replies(prompts)


def request_of(prompt: Prompt) -> tuple[list[dict[str, str]], int]:
    """The messages and the seed that a language model is sent.

    With one seed for all steps of a line it would draw the same numbers at each, and so say the same to much the same
    prompt.
    """
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages]
    return messages, derive(prompt.seed, *(message.content for message in prompt.messages))


class TeacherTeam:
    """Plays assignments with the agents of its roles (a `TeacherModel` or a `RoleAgent`) and tool executors, all of
    them actor handles."""

    def __init__(
        self,
        team: TeamConfig,
        agents: Mapping[str, Any],
        executors: Sequence[Any],
        config: TeachingConfig,
        *,
        models: tuple[tuple[str, str], ...] = (),
        seed: int,
        layouts: Sequence[str] = (PLAIN,),
        ledger: Path | None = None,
    ) -> None:
        """models: (role, model) as transcripts tell it; ledger: where observations are kept until the stage is over;
        None keeps none, for experts cost nothing."""
        freeze()
        self._team, self._config, self._seed, self._layouts = team, config, seed, tuple(layouts)
        self._models = models
        self._ask_of = {role: self._asking(role, agent) for role, agent in agents.items()}
        self._executors = list(executors)
        self._use_tool = ToolClient(self._call_tools)
        self._ledger = Ledger(ledger) if ledger is not None else None
        self._spent = Usage()
        """What all runs took, those under way and those of before included."""
        self._open: dict[tuple[str, int], Usage] = {}
        """What runs under way took, as far as their present issue was told: a further one is told of it again."""

    async def play(self, assignments: Sequence[Assignment], finished: Usage | None = None) -> Played:
        """`finished`: what all runs that have ended took, of this team and those before it, from which one that was
        restarted learns what is left of the budget."""
        # A team that was restarted hears first of calls that were made before others ended.
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
                    raise  # no run is to blame
                except RequestRefused as error:  # and would be again
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

        run = start(assignment, self._team, seed=self._seed, layouts=self._layouts)
        return await grade(await play(run, ask, use, self._models), self._use_tool)

    def _take(self, name: tuple[str, int], usage: Usage) -> None:
        if usage.requests:
            self._open[name] += usage
            self._spent += usage

    async def _observe(self, call: ToolCall, key: str) -> str:
        if self._ledger is None:
            return await self._use_tool(call)
        kept = self._ledger.get(key)
        if kept is not None and kept[:2] == [call.tool, call.argument]:
            return kept[2]
        observation = str(await self._use_tool(call))
        self._ledger.put(key, [call.tool, call.argument, observation])
        return observation

    def _asking(self, role: str, agent: Any) -> Callable[[Prompt], Any]:
        async def many(prompts: Sequence[Prompt]) -> Sequence[Reply | InfrastructureError]:
            return await agent.replies.remote(list(prompts))

        async def one(prompt: Prompt) -> Reply:  # alone: no reply waits for another one's
            try:
                completion = await agent.complete.remote(*request_of(prompt))
            except UserError as error:  # what a person must put right arrives wrapped, with a traceback
                raise UserError(str(getattr(error, "cause", error))) from None
            if isinstance(completion, InfrastructureError):
                raise completion
            return Reply(completion.text, completion.usage)

        return Gather(many) if self._team.model_of(role) == EXPERTS else one

    async def _call_tools(self, calls: Sequence[ToolCall]) -> Sequence[str | InfrastructureError]:
        executor = self._executors[0]
        self._executors.append(self._executors.pop(0))  # in turn
        try:
            return await executor.call_many.remote(list(calls))
        except RayTaskError:
            raise
        except RayError as error:
            return [ToolDown(f"the tool executor is gone: {type(error).__name__}")] * len(calls)
