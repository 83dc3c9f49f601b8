"""Plays the episodes of a program: runs it, records what the policy sampled for it, and grades its answer."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from actors.gateway.functions import FunctionHost
from actors.gateway.process import Exited, environment, run_command
from actors.gateway.server import Gateway
from actors.gateway.session import Session, TakeTurn
from actors.messages import EVALUATION, CallId, EpisodeOrder
from coa.agent.codec import Codec
from coa.agent.programs.tree import Forest, Path, forest_of
from coa.errors import EpisodeFailed, EpisodeTimeout, InfrastructureError, ProgramFailed, UserError
from coa.grading.graders import RIGHT
from coa.grading.rewards import RewardConfig, score
from coa.tools.base import ToolCall
from coa.tools.client import RetryConfig, ToolCaller
from coa.types import Scored, Status, Trajectory

TRY_AGAIN = 75
"""Exit status of a program that can't go on for reasons that are not the policy's: EX_TEMPFAIL of <sysexits.h>."""
SHOWN = 400
"""Characters of a program's last words in a failure."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program's episode ended."""

    status: Status
    answer: str


class ProgramPlayer:
    """Plays episodes whose agent is a program (`agent.program`), as `cluster.pool.EnginePool` plays those of a
    profile."""

    def __init__(
        self,
        gateway: Gateway,
        address: str,
        take_turn: TakeTurn,
        tools: ToolCaller,
        codec: Codec,
        *,
        reward: RewardConfig,
        retry: RetryConfig,
        at_once: int,
        say: Callable[[str], None],
    ) -> None:
        """address: of the gateway, without a path. say: called once for each kind of warning."""
        self._gateway, self._address, self._take_turn = gateway, address, take_turn
        self._tools, self._codec, self._reward, self._retry = tools, codec, reward, retry
        self._places = asyncio.Semaphore(at_once)
        self._say, self._said = say, set[str]()
        self._hosts: dict[str, FunctionHost] = {}
        self._works = False
        """Whether a program has ever asked the policy."""

    async def play(self, order: EpisodeOrder) -> Scored:
        """Plays an episode. Raises EpisodeFailed if the program asks the policy nothing, or the policy can't answer it;
        and, which in an evaluation is an episode without an answer, if it takes too long, is killed, or ends with
        TRY_AGAIN. Raises UserError if no program has ever asked the policy."""
        session = Session(order, self._take_turn)
        async with self._places:
            try:
                with self._gateway.session(session) as key:
                    ended = await self._run(session, environment(self._address, key))
            except InfrastructureError as error:
                raise _failed(session, error) from error
        forest = forest_of(session.calls, ended.answer, auxiliary=order.agent.program.auxiliary)
        return await self._score(session, ended, forest)

    async def _run(self, session: Session, variables: dict[str, str]) -> Ended:
        """Runs the program; raises ProgramFailed, EpisodeTimeout in training, and the failure of a call."""
        order = session.order
        try:
            async with asyncio.timeout(order.limit_s):
                exited = await self._exited(order, variables)
        except TimeoutError as error:
            if order.id.group != EVALUATION or not session.calls:
                raise EpisodeTimeout(f"{order.limit_s:g} s were not enough") from error
            return Ended(Status.TRUNCATED, "")
        self._works |= bool(session.calls)
        if session.failure is not None:
            raise session.failure
        if not session.calls:
            problem = f"{_last_words(exited)}; it asked the policy nothing"
            raise ProgramFailed(problem) if self._works else UserError(f"agent.program: {problem}")
        if exited.status and not session.exhausted and order.id.group != EVALUATION:
            if exited.status == TRY_AGAIN or exited.status < 0 or not session.calls:
                raise ProgramFailed(_last_words(exited))
            self._say_once(
                "crash",
                f"a program that fails after a reply counts as one without an answer: {_last_words(exited)}; with the "
                f"status {TRY_AGAIN}, the episode would be played again (docs/programs.md)",
            )
        if exited.answer and not exited.status:
            return Ended(Status.ANSWERED, exited.answer)
        return Ended(Status.OUT_OF_TURNS if session.exhausted else Status.MALFORMED, "")

    def _say_once(self, what: str, warning: str) -> None:
        if what not in self._said:
            self._said.add(what)
            self._say(f"warning: {warning}")

    async def _exited(self, order: EpisodeOrder, variables: dict[str, str]) -> Exited:
        program = order.agent.program
        if program.function is None:
            return await run_command(program.command, order.task, variables)
        host = self._hosts.setdefault(program.function, FunctionHost(program.function))
        return await host.run(order.task, variables)

    async def close(self) -> None:
        """Ends what runs functions."""
        await asyncio.gather(*(host.close() for host in self._hosts.values()))

    async def _score(self, session: Session, ended: Ended, forest: Forest) -> Scored:
        order = session.order
        main, *others = sorted(forest.paths, key=lambda path: -path.calls[-1].answered)
        trajectories = [self._trajectory(session, ended, path) for path in (main, *others)]
        parts: list[CallId] = []

        async def use_tool(call: ToolCall) -> str:
            id = CallId(order.id, len(session.calls), 1 + len(parts))
            parts.append(id)
            return await self._retry.call(partial(self._tools.call, id, call))

        budget = max(1, order.agent.limits.max_tokens - trajectories[0].prompt_length)
        try:
            scored = await score(trajectories[0], order.task, self._reward, budget=budget, use_tool=use_tool)
        except InfrastructureError as error:
            raise _failed(session, error) from error
        finally:
            self._tools.acknowledge(parts)
        unused = Counter(why.value for why in forest.unused.values())
        if order.id.group != EVALUATION and not any(path.trained for path in forest.paths):
            reasons = ", ".join(f"{number} {why}" for why, number in unused.items())
            self._say_once(
                "untrained",
                f"nothing of task {order.task.id} can be trained: responses are {reasons} (docs/programs.md)",
            )
        scored = replace(scored, others=tuple(trajectories[1:]), unused=dict(unused))
        if (reward := session.reward) is None:
            return scored
        grade = min(1.0, max(0.0, reward))
        return replace(scored, grade=grade, correct=grade >= RIGHT, reward=reward)

    def _trajectory(self, session: Session, ended: Ended, path: Path) -> Trajectory:
        token_ids, mask, logprobs, versions = path.arrays()
        prompt = len(path.calls[0].prompt)
        return Trajectory(
            task_id=session.order.task.id,
            sample=session.order.id.sample,
            token_ids=token_ids,
            action_mask=mask,
            logprobs=logprobs,
            versions=versions,
            prompt_length=prompt,
            turns=len(path.calls),
            tool_calls=tuple(tool for call in path.calls for tool in call.tools),
            status=ended.status,
            answer=ended.answer,
            text=self._codec.decode(token_ids[prompt:]),
            transitions_hold=True,
        )


def _failed(session: Session, error: InfrastructureError) -> EpisodeFailed:
    tokens = max((len(call.whole) for call in session.calls), default=0)
    where = error.where if isinstance(error, EpisodeFailed) else type(error).__name__
    why = error.why if isinstance(error, EpisodeFailed) else str(error)
    return EpisodeFailed(where, why, tokens=tokens, tool_calls=len(session.calls))


def _last_words(exited: Exited) -> str:
    said = exited.log.strip()
    shown = said if len(said) <= SHOWN else f"...{said[-SHOWN:]}"
    return f"the program ended with status {exited.status}: {' '.join(shown.split()) or 'it said nothing'}"
