"""A runner of episodes on a policy that needs no model."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from actors.messages import EpisodeId, EpisodeOrder, Event, Order, Terminal
from actors.outbox import Outbox
from actors.rollout.clocks import TimeLimits
from actors.rollout.config import SamplingConfig
from actors.rollout.runner import Entry, EpisodeRunner
from coa.agent.episode import AgentConfig, Ask
from coa.agent.grammar import Chain, Span
from coa.agent.journal import Said
from coa.grading.rewards import RewardConfig
from coa.seeds import derive
from coa.tools.client import Executor, RetryConfig, ToolCaller
from coa.types import Task, Tokens
from tests.support.fakes import ROOMY, said_of, spans_of, tag_codec

AGENT = AgentConfig(instructed=False, limits=ROOMY)
AT_ONCE = RetryConfig(attempts=4, pause_s=0.0)


class SeededPolicy:
    """Says what follows from a turn's seed and from what it has been shown: between no tool call and `most` of them."""

    def __init__(self, most: int = 6) -> None:
        self.limits = TimeLimits()
        self.most = most
        self.seeds: list[int] = []
        self.priorities: list[int] = []
        self.under_way = 0
        self.syncs = 0

    async def generate(
        self,
        ask: Ask,
        *,
        seed: int,
        priority: int,
        on_tokens: Callable[[Tokens], None] | None,
        stream: bool,
        **how: Any,
    ) -> Said:
        self.seeds.append(seed)
        self.priorities.append(priority)
        self.under_way += 1
        try:
            for _ in range(seed % 3):
                await asyncio.sleep(0)
        finally:
            self.under_way -= 1
        said = said_of(spans_of(tag_codec(), self.turn(ask, seed)), version=0, logprob=-1.0, max_tokens=ask.max_tokens)
        begun = len(ask.begun)
        assert said.token_ids[:begun].tolist() == ask.begun.tolist(), (
            "a turn goes on with the tokens that it begins with"
        )
        if on_tokens is not None and stream:
            half = (begun + len(said.token_ids)) // 2
            on_tokens(said.token_ids[begun:half])
            on_tokens(said.token_ids[half:])
        return said

    def turn(self, ask: Ask, seed: int) -> Chain:
        word = f"{derive(seed, ask.prompt.tobytes()) % 10**9}"
        if ask.turn < self.most and seed % (self.most + 1) > 0:
            return (Span("plan", "p"), Span("wiki_search", word))
        return (Span("plan", "p"), Span("answer", word))


class Runner:
    """An EpisodeRunner with its outbox, and what is read of it."""

    def __init__(
        self,
        executor: Executor,
        *,
        policy: Any = None,
        retry: RetryConfig = AT_ONCE,
        name: str = "engine",
        reward: RewardConfig | None = None,
    ) -> None:
        self.policy = policy or SeededPolicy()
        self.outbox: Outbox[Entry] = Outbox()
        self.runner = EpisodeRunner(
            self.policy,
            ToolCaller(executor, name),
            codec=tag_codec(),
            reward=reward or RewardConfig(formula="grade * form"),
            seed=7,
            retry=retry,
            outbox=self.outbox,
        )
        self.events: list[Event] = []

    @property
    def ended(self) -> list[Terminal]:
        return [event for event in self.events if isinstance(event, Terminal)]

    @property
    def running(self) -> int:
        """Episodes under way."""
        return len(self.runner._tasks)

    def acknowledge(self) -> None:
        """Of what was read."""
        self.runner.acknowledge(self.outbox.acknowledge(len(self.events)))

    async def read(self) -> Sequence[Event]:
        """The next events, which are acknowledged with the events after them."""
        self.acknowledge()
        first, entries = await self.outbox.next()
        assert first == len(self.events)
        events = [entry.event for entry in entries]
        self.events += events
        return events

    async def until_ended(self, count: int) -> None:
        while len(self.ended) < count:
            await self.read()

    async def play(self, orders: Iterable[Order]) -> list[Terminal]:
        """All of them; returns their terminal events."""
        before, orders = len(self.ended), list(orders)
        self.runner.start(orders)
        await self.until_ended(before + len(orders))
        return self.ended[before:]


def task_of(index: int) -> Task:
    return Task(id=f"t{index}", question=f"Who is {index} ?", answers=("1",), profile="mhqa", family="f")


def order(index: int = 0, sample: int = 0, *, group: int = 0, **named: Any) -> EpisodeOrder:
    task = task_of(index)
    settings: dict[str, Any] = {"sampling": SamplingConfig(), "agent": AGENT, **named}
    return EpisodeOrder(id=EpisodeId(task.id, group, sample), task=task, **settings)
