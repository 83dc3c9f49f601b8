"""Plays episodes for clients, on the runner that training uses, and tells of them as they happen.

play(request) ──► EpisodeRunner ──► outbox ──► one queue an episode ──► chain events of `coa.serving.events`
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

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
)
from actors.outbox import Outbox
from actors.rollout.config import SamplingConfig
from actors.rollout.runner import Entry, EpisodeRunner, Policy, Tools
from actors.serving.metrics import FirstToken, ServingMetrics
from coa.agent.codec import Codec
from coa.agent.episode import Grammar, Limits
from coa.agent.grammar import OBSERVATION, TAGS, parse, unescape
from coa.agent.journal import Observed, Said
from coa.agent.lenient import lenient_tag_pattern
from coa.agent.profiles import profile as find_profile
from coa.errors import EngineDied, ToolDown
from coa.grading.rewards import RewardConfig
from coa.serving.chain import ChainReader
from coa.serving.events import TOOL_DOWN, Broke, Event, Finished, Returned, ServedUsage
from coa.serving.requests import AgentRequest
from coa.tools.client import RetryConfig
from coa.types import Status, Task, Tokens, Trajectory

EVENTS_PACE_S = 0.02
"""Between two batches of events: tokens that come closer together travel together."""


@dataclass(slots=True)
class Spent:
    """What an episode has cost so far."""

    tokens: int = 0
    """That were read and sampled, each once."""


class ServedAgent:
    """Many episodes at once, of one process's policy."""

    def __init__(
        self, policy: Policy, tools: Tools, *, codec: Codec, retry: RetryConfig, metrics: ServingMetrics | None = None
    ) -> None:
        self._codec = codec
        self.metrics = metrics or ServingMetrics()
        self.metrics.episodes.set_function(lambda: self.under_way)
        self._outbox: Outbox[Entry] = Outbox(EVENTS_PACE_S)
        # Nothing is graded, so the reward is never computed.
        self._runner = EpisodeRunner(
            policy, tools, codec=codec, reward=RewardConfig(), seed=0, retry=retry, outbox=self._outbox, isolate=True
        )
        self._queues: dict[EpisodeId, asyncio.Queue[messages.Event | None]] = {}
        """Of each episode; None where no event comes any more."""
        self._serials = itertools.count()
        self._reading: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> int:
        """Episodes that are being played."""
        return len(self._queues)

    def check(self) -> None:
        """Raises the defect after which no episode can be played any more."""
        if self._reading is not None and self._reading.done():
            self._reading.result()

    def prompt_tokens(self, request: AgentRequest) -> int:
        """Of what an episode begins with."""
        profile, instructed = find_profile(request.profile), request.agent.instructed
        return len(self._codec.prompt(profile, request.question, instructed=instructed))

    async def play(
        self, request: AgentRequest, sample: int = 0, *, salt: str = "", spent: "Spent | None" = None
    ) -> AsyncGenerator[Event]:
        """Yields what happens in one episode, its end last. Closing this generator ends the episode, with its request
        at the engine and its tool call. `salt`: episodes of another one share no KV cache with it. `spent`: is kept up
        to date."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(self._stop)
        self.check()
        order = self._order(request, sample, salt)
        queue = self._queues[order.id] = asyncio.Queue()
        self._runner.start([order])
        try:
            async with aclosing(self._follow(order, queue, spent or Spent())) as events:
                async for event in events:
                    yield event
        finally:
            del self._queues[order.id]
            # The client may be gone, and this task cancelled; what it has begun is ended nevertheless.
            await asyncio.shield(asyncio.ensure_future(self._runner.cancel([order.id])))

    def _order(self, request: AgentRequest, sample: int, salt: str) -> EpisodeOrder:
        """An episode whose draws depend on the request's seed alone; without one they are new each time."""
        seed = secrets.token_hex(8) if request.seed is None else str(request.seed)
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
        )

    async def _read(self) -> None:
        """Deals the runner's events to the queues of their episodes."""
        heard = 0
        while True:
            first, entries = await self._outbox.next()
            for entry in entries:
                if queue := self._queues.get(entry.event.id):
                    queue.put_nowait(entry.event)
            heard = first + len(entries)
            self._runner.acknowledge(self._outbox.acknowledge(heard))

    def _stop(self, reading: "asyncio.Task[None]") -> None:
        """Wakes whoever waits for events: there will be none."""
        for queue in self._queues.values():
            queue.put_nowait(None)

    async def _next(self, queue: asyncio.Queue[messages.Event | None]) -> messages.Event:
        """The next event of an episode; raises the defect that ended the reading, if one did."""
        if (event := await queue.get()) is not None:
            return event
        self.check()
        raise EngineDied("the runner's events have ended")

    def _reader(self, lenient: bool) -> ChainReader:
        return ChainReader(self._codec.stream(), lenient_tag_pattern() if lenient else None)

    async def _follow(
        self, order: EpisodeOrder, queue: asyncio.Queue[messages.Event | None], spent: "Spent"
    ) -> AsyncGenerator[Event]:
        agent, lenient = order.agent, order.agent.grammar is Grammar.lenient
        reader, tool, called = self._reader(lenient), "", 0.0
        metrics, first = self.metrics, FirstToken(self.metrics)
        heard, cut = 0, False  # tokens of the turn under way, and whether a turn ran out of them
        while True:
            match await self._next(queue):
                case Streamed(token_ids=token_ids):
                    if order.level is EventLevel.TOKENS:
                        first.came()
                    metrics.policy_tokens.inc(len(token_ids))
                    heard += len(token_ids)
                    spent.tokens += len(token_ids)
                    for mark in reader.feed(token_ids):
                        yield mark
                case Advanced(delta=Said(token_ids=token_ids, ended=ended)):
                    metrics.policy_tokens.inc(len(token_ids) - heard)
                    spent.tokens += len(token_ids) - heard
                    for mark in (*reader.feed(token_ids[heard:]), *reader.end()):
                        yield mark
                    heard, cut = 0, not ended
                    tool = reader.latest
                    reader, called = self._reader(lenient), time.monotonic()
                case Advanced(delta=Observed(token_ids=token_ids)):
                    seconds = time.monotonic() - called
                    metrics.tool_calls.labels(tool).inc()
                    spent.tokens += len(token_ids)
                    yield Returned(tool=tool, text=self._observed(token_ids), seconds=seconds, tokens=len(token_ids))
                case Ended():
                    result = self._runner.results[order.id]
                    assert isinstance(result, Trajectory)
                    limit = limit_of(result, agent.limits, cut=cut)
                    usage = usage_of(result, self._codec, unfinished=heard if limit == "max_seconds" else 0)
                    metrics.ended.labels(result.status.name).inc()
                    metrics.input_tokens.inc(usage.input_tokens)
                    spent.tokens = usage.input_tokens + usage.output_tokens
                    yield Finished(
                        status=result.status,
                        answer=result.answer,
                        usage=usage,
                        limit=limit,
                        versions=_sampled_by(result),
                    )
                    return
                case Failed(where=where, why=why):
                    metrics.ended.labels(where).inc()
                    metrics.tool_failures.inc(where == ToolDown.__name__)
                    yield Broke(code=_CODES.get(where, "server_error"), message=why)
                    return
                case Cancelled():
                    yield Broke(code="cancelled", message="the request was cancelled")
                    return

    def _observed(self, token_ids: Tokens) -> str:
        """The text between an observation's tags, or what there was room for of it."""
        text = self._codec.decode(token_ids)
        [*spans] = parse(text).chain
        return spans[0].text if spans else unescape(text.removeprefix(TAGS[OBSERVATION].open).removeprefix(" "))


def limit_of(trajectory: Trajectory, limits: Limits, *, cut: bool) -> str:
    """The limit that ended an episode (`Finished.limit`). cut: whether its last turn ran out of tokens."""
    match trajectory.status:
        case Status.OUT_OF_TURNS:
            return "max_turns" if trajectory.turns >= limits.max_turns else "max_tool_calls"
        case Status.TRUNCATED:
            return "max_output_tokens" if cut or len(trajectory.token_ids) >= limits.max_tokens else "max_seconds"
        case _:
            return ""


def _sampled_by(trajectory: Trajectory) -> tuple[int, ...]:
    """The versions of the weights."""
    return tuple(sorted({int(version) for version in trajectory.versions[trajectory.action_mask.astype(bool)]}))


def usage_of(trajectory: Trajectory, codec: Codec, *, unfinished: int = 0) -> ServedUsage:
    """The one stream that the episode is: each token is counted once, however many turns read it. unfinished: tokens of
    a turn that the trajectory does not have, since the time was up."""
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
"""What clients are told of a failure of the system, by its type."""
