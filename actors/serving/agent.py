"""Plays episodes for clients with the runner that training uses, and streams their events.

play(request) ──► EpisodeRunner ──► outbox ──► one queue per episode ──► chain events of `coa.serving.events`
"""

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import numpy as np

from actors import messages
from actors.messages import (
    EVALUATION,
    Advanced,
    Cancelled,
    Ended,
    EpisodeId,
    EpisodeOrder,
    EventLevel,
    Failed,
    Streamed,
    Terminal,
)
from actors.outbox import Outbox
from actors.rollout.config import SamplingConfig
from actors.rollout.runner import Entry, EpisodeRunner, Policy, Tools
from actors.serving.course import Course
from actors.serving.metrics import FirstToken, ServingMetrics
from coa.agent.chain_format import ChainFormat
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig, Grammar, Limits
from coa.agent.grammar import OBSERVATION, TAGS, parse, unescape
from coa.agent.journal import Observed, Said
from coa.agent.lenient import lenient_tag_pattern
from coa.agent.profiles import profile as find_profile
from coa.concurrency import beyond_caller
from coa.errors import EngineDied, ToolDown
from coa.grading.rewards import RewardConfig
from coa.serving.chain import ChainReader
from coa.serving.events import TOOL_DOWN, Broke, Event, Finished, Returned, ServedUsage
from coa.serving.requests import AgentRequest
from coa.serving.resumption import Answered, Dropped, Heard, Step, begun_in, cut_short, ended_turn, journal_in, steps_in
from coa.tools.client import RetryConfig
from coa.types import Status, Task, Trajectory

EVENTS_PACE_S = 0.02
"""Minimum seconds between two batches of events; tokens that come within this time are sent together."""


@dataclass(slots=True)
class Spent:
    """Cost of an episode so far."""

    tokens: int = 0
    """Number of tokens read and sampled, each counted once."""


class ServedAgent:
    """Plays many episodes at once on the policy of this process."""

    def __init__(
        self, policy: Policy, tools: Tools, *, codec: Codec, retry: RetryConfig, metrics: ServingMetrics | None = None
    ) -> None:
        self._codec = codec
        self.metrics = metrics or ServingMetrics()
        self.metrics.episodes.set_function(lambda: self.under_way)
        self._outbox: Outbox[Entry] = Outbox(lambda: EVENTS_PACE_S)
        # Nothing is graded, so the reward is never computed.
        self._runner = EpisodeRunner(
            policy, tools, codec=codec, reward=RewardConfig(), seed=0, retry=retry, outbox=self._outbox, isolate=True
        )
        self._queues: dict[EpisodeId, asyncio.Queue[messages.Event | None]] = {}
        """Events by episode; a None in a queue means that no further event comes."""
        self._serials = itertools.count()
        self._reading: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> int:
        """Number of episodes under way."""
        return len(self._queues)

    def check(self) -> None:
        """Raises the exception that ended the reading of events, after which no episode can be played."""
        if self._reading is not None and self._reading.done():
            self._reading.result()

    def prompt_tokens(self, question: str, profile: str, agent: AgentConfig) -> int:
        """Number of tokens of an episode's initial prompt."""
        return len(self._codec.prompt(agent.profile(profile), question, instructed=agent.instructed))

    async def play(
        self,
        request: AgentRequest,
        sample: int = 0,
        *,
        salt: str = "",
        spent: "Spent | None" = None,
        course: Course | None = None,
    ) -> AsyncGenerator[Event]:
        """Yields the events of one episode, its end last. Closing this generator ends the episode with its engine
        request and tool call. `salt`: only episodes of the same salt share KV cache. `spent`: updated as the episode
        proceeds. `course`: has the steps of the episode that were played elsewhere, and gets the further ones."""
        if self._reading is None:
            self._reading = beyond_caller(self._read())
            self._reading.add_done_callback(self._stop)
        self.check()
        course = course or Course()
        before = self._steps_before(course, request.profile)
        order = self._order(request, sample, salt, course, before)
        queue = self._queues[order.id] = asyncio.Queue()
        self._runner.start([order])
        try:
            steps = self._steps(order.id, before, queue, course)
            async with aclosing(self._follow(order, steps, spent or Spent(), course)) as events:
                async for event in events:
                    yield event
        finally:
            del self._queues[order.id]
            # The client may be gone and this task cancelled; the episode is ended nevertheless.
            await asyncio.shield(beyond_caller(self._runner.cancel([order.id])))

    def _steps_before(self, course: Course, profile: str) -> list[Step]:
        """The steps that were played elsewhere and from which the episode goes on. A turn whose stop was heard has
        ended, also where the engine had no time to say so: another one looks for stops only in what it samples."""
        steps, dropped = cut_short(steps_in(course.origin.record), self._codec.decode)
        if dropped:
            course.note(Dropped(dropped))
        begun, stops = begun_in(steps), self._codec.stops(find_profile(profile))
        stopped = begun and begun[-1] in stops.token_ids
        if stopped or (begun and stops.strings and self._codec.decode(begun).endswith(stops.strings)):
            steps.append(ended_turn(steps))
            course.note(steps[-1])
        return steps

    def _order(
        self, request: AgentRequest, sample: int, salt: str, course: Course, before: Sequence[Step]
    ) -> EpisodeOrder:
        """An order whose sampling depends only on the request's seed; without a seed, on the answer's origin."""
        seed = course.origin.name if request.seed is None else str(request.seed)
        task = Task(id=seed, question=request.question, answers=(), profile=request.profile, family="served")
        return EpisodeOrder(
            id=EpisodeId(seed, EVALUATION, sample, serial=next(self._serials)),
            task=task,
            sampling=SamplingConfig(request.temperature, request.top_p),
            agent=request.agent,
            graded=False,
            level=EventLevel.TOKENS if request.streamed else EventLevel.UNFINISHED,
            limit_s=request.agent.limits.max_seconds,
            salt=salt,
            journal=journal_in(before),
            begun=np.array(begun, np.int32) if (begun := begun_in(before)) else None,
        )

    async def _read(self) -> None:
        """Distributes the runner's events to the queues of their episodes."""
        heard = 0
        while True:
            first, entries = await self._outbox.next()
            for entry in entries:
                if queue := self._queues.get(entry.event.id):
                    queue.put_nowait(entry.event)
            heard = first + len(entries)
            self._runner.acknowledge(self._outbox.acknowledge(heard))

    def _stop(self, reading: "asyncio.Task[None]") -> None:
        """Wakes all waiting readers of events, since no further event comes."""
        for queue in self._queues.values():
            queue.put_nowait(None)

    async def _steps(
        self, id: EpisodeId, before: Sequence[Step], queue: asyncio.Queue[messages.Event | None], course: Course
    ) -> AsyncGenerator[Step | Terminal]:
        """The steps that were played elsewhere, then those of the runner, which are noted, and the end of the episode.
        Raises the exception that ended the reading of the runner's events, if there was one."""
        for step in before:
            yield step
        called = time.monotonic()
        while (event := await queue.get()) is not None:
            match event:
                case Streamed(token_ids=token_ids):
                    step = Heard(tuple(token_ids.tolist()))
                case Advanced(delta=Observed() as observed):
                    step = Answered(observed, time.monotonic() - called)
                case Advanced(delta=Said() as step):
                    called = time.monotonic()
                case Ended() | Failed() | Cancelled() as terminal:
                    yield terminal
                    return
            course.note(step)
            yield step
        self.check()
        raise EngineDied("the runner's events have ended")

    def _reader(self, agent: AgentConfig, form: ChainFormat) -> ChainReader:
        lenient = agent.grammar is Grammar.lenient
        return ChainReader(self._codec.stream(), lenient_tag_pattern() if lenient else None, form)

    async def _follow(
        self, order: EpisodeOrder, steps: AsyncGenerator[Step | Terminal], spent: "Spent", course: Course
    ) -> AsyncGenerator[Event]:
        form = order.agent.profile(order.task.profile).format
        reader, tool = self._reader(order.agent, form), ""
        metrics, first = self.metrics, FirstToken(self.metrics)
        heard, cut = 0, False  # tokens of the turn under way, and whether the last turn hit its token limit
        async with aclosing(steps):
            async for step in steps:
                match step:
                    case Heard(token_ids):
                        if order.level is EventLevel.TOKENS:
                            first.came()
                        metrics.policy_tokens.inc(len(token_ids))
                        heard += len(token_ids)
                        spent.tokens += len(token_ids)
                        for mark in reader.feed(token_ids):
                            yield mark
                    case Said(token_ids=token_ids, ended=ended):
                        metrics.policy_tokens.inc(len(token_ids) - heard)
                        spent.tokens += len(token_ids) - heard
                        for mark in (*reader.feed(token_ids[heard:]), *reader.end()):
                            yield mark
                        heard, cut = 0, not ended
                        tool, reader = reader.latest, self._reader(order.agent, form)
                    case Answered(observed, seconds):
                        metrics.tool_calls.labels(tool).inc()
                        tokens = len(observed.token_ids)
                        spent.tokens += tokens
                        text = self._observed(observed, form)
                        yield Returned(tool=tool, text=text, seconds=seconds, tokens=tokens)
                    case Ended() | Failed() | Cancelled() as terminal:
                        yield self._end(order, terminal, heard, spent, cut=cut, course=course)

    def _end(
        self, order: EpisodeOrder, terminal: Terminal, heard: int, spent: "Spent", *, cut: bool, course: Course
    ) -> Event:
        """The event of an episode's end. heard: tokens of a turn that has not ended. cut: whether the last turn hit its
        token limit."""
        metrics = self.metrics
        match terminal:
            case Ended():
                result = self._runner.results[order.id]
                assert isinstance(result, Trajectory)
                limit = limit_of(result, order.agent.limits, cut=cut)
                usage = usage_of(result, self._codec, unfinished=heard if limit == "max_seconds" else 0)
                metrics.ended.labels(result.status.name).inc()
                metrics.input_tokens.inc(usage.input_tokens)
                spent.tokens = usage.input_tokens + usage.output_tokens
                return Finished(
                    status=result.status,
                    at=course.over(),
                    answer=result.answer,
                    usage=usage,
                    limit=limit,
                    versions=_sampled_by(result),
                )
            case Failed(where=where, why=why):
                metrics.ended.labels(where).inc()
                metrics.tool_failures.inc(where == ToolDown.__name__)
                return Broke(code=_CODES.get(where, "server_error"), message=why)
            case Cancelled():
                return Broke(code="cancelled", message="the request was cancelled")

    def _observed(self, observed: Observed, form: ChainFormat) -> str:
        """The text between an observation's tags; of a truncated observation, the part that is there."""
        text = self._codec.decode(observed.token_ids).lstrip(" \n")
        [*spans] = parse(text, form).chain
        return spans[0].text if spans else unescape(form.bare(text.removeprefix(TAGS[OBSERVATION].open)))


def limit_of(trajectory: Trajectory, limits: Limits, *, cut: bool) -> str:
    """The limit that ended an episode (`Finished.limit`). cut: whether its last turn hit the token limit."""
    match trajectory.status:
        case Status.OUT_OF_TURNS:
            return "max_turns" if trajectory.turns >= limits.max_turns else "max_tool_calls"
        case Status.TRUNCATED:
            return "max_output_tokens" if cut or len(trajectory.token_ids) >= limits.max_tokens else "max_seconds"
        case _:
            return ""


def _sampled_by(trajectory: Trajectory) -> tuple[int, ...]:
    """Weight versions that sampled the trajectory."""
    return tuple(sorted({int(version) for version in trajectory.versions[trajectory.action_mask.astype(bool)]}))


def usage_of(trajectory: Trajectory, codec: Codec, *, unfinished: int = 0) -> ServedUsage:
    """Usage of an episode as a single token stream: each token counts once, however many turns read it. unfinished:
    tokens of a turn that was cut off by the time limit and is not in the trajectory."""
    sampled = int(trajectory.action_mask.sum()) + unfinished
    answer = codec.count([trajectory.answer]) if trajectory.answer else 0
    return ServedUsage(
        input_tokens=len(trajectory.token_ids) + unfinished - sampled,
        output_tokens=sampled,
        reasoning_tokens=max(0, sampled - answer),
        tool_calls=len(trajectory.tool_calls),
        turns=trajectory.turns,
    )


_CODES = {ToolDown.__name__: TOOL_DOWN}
"""Error codes for clients, by type of infrastructure failure; others are "server_error"."""
