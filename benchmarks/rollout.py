"""The cost of the pool and its actors: episodes per second through them, relative to the same runner in this process.

    python -m benchmarks.rollout

Both sides play the same episodes with the same seeds on an untrained policy with an enforced grammar, with a tool that
answers without delay. `alone` is the upper limit of the engine: `EpisodeRunner` on `PolicyAdapter`, the tool in the
same process, no Ray. `pool` is the setup of a run: the driver's pool, an engine's actor and a tool executor's actor.
"""

import asyncio
import itertools
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from actors.messages import EpisodeId, EpisodeOrder, Terminal
from actors.outbox import Outbox
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.rollout.engine import RolloutEngine
from actors.rollout.runner import Entry, EpisodeRunner
from actors.tools.executor import ExecutorConfig, ToolExecutor
from actors.tools.remote import ExecutorActor
from benchmarks.constrained import make_model
from benchmarks.harness import report
from cluster.engine_actor import launcher
from cluster.health import PoolConfig
from cluster.pool import EnginePool
from cluster.resources import PlacementConfig
from cluster.session import SessionConfig, session
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig, Grammar, Limits
from coa.grading.rewards import RewardConfig
from coa.tools.base import Tool, ToolCall
from coa.tools.client import RetryConfig, ToolCaller
from coa.types import Scored, Task

AT_ONCE = (64, 256)
EPISODES = 512
"""Of a round and side."""
GROUP = 8
ROUNDS = 4
AGENT = AgentConfig(
    instructed=False,
    grammar=Grammar.enforce,
    limits=Limits(max_turns=6, max_turn_tokens=64, max_observation_tokens=64, max_tokens=384),
)
ENGINE = EngineConfig(max_concurrent=256, threads=1)
TARGETS = {f"ratio_{n}": ">= 0.9" for n in AT_ONCE}


class Answer:
    """Answers every call at once."""

    def key(self, call: ToolCall) -> None:
        return None

    async def __call__(self, call: ToolCall) -> str:
        return "42"


def make_tools() -> dict[str, Tool]:
    return dict.fromkeys(("code", "web_search", "wiki_search", "crawl_page"), Answer())


def groups_of(round_: int) -> list[list[EpisodeOrder]]:
    """Groups of episodes."""
    groups = range(round_ * EPISODES // GROUP, (round_ + 1) * EPISODES // GROUP)
    return [
        [
            EpisodeOrder(id=EpisodeId(task.id, group, sample), task=task, sampling=SamplingConfig(), agent=AGENT)
            for sample in range(GROUP)
        ]
        for group in groups
        for task in [Task(id=f"t{group}", question=f"Who is it {group} ?", answers=("x",), profile="multi", family="f")]
    ]


class Alone:
    """The runner in this process."""

    def __init__(self, folder: Path) -> None:
        codec = Codec.load(folder)
        limits = AGENT.limits
        self.policy = PolicyAdapter(str(folder), ENGINE, max_tokens=limits.max_tokens, tag_tokens=codec.tag_tokens())
        self._outbox: Outbox[Entry] = Outbox()
        self._runner = EpisodeRunner(
            self.policy,
            ToolCaller(ToolExecutor(make_tools), "alone"),
            codec=codec,
            reward=RewardConfig(),
            seed=0,
            retry=RetryConfig(),
            outbox=self._outbox,
        )
        self._ended: dict[EpisodeId, asyncio.Future[None]] = {}
        self.reading = asyncio.ensure_future(self._read())

    async def play(self, order: EpisodeOrder) -> Scored:
        ended = self._ended[order.id] = asyncio.get_running_loop().create_future()
        self._runner.start([order])
        await ended
        scored = self._runner.results[order.id]
        self._runner.forget([order.id])
        assert isinstance(scored, Scored)
        return scored

    async def _read(self) -> None:
        heard = 0
        while True:
            self._runner.acknowledge(self._outbox.acknowledge(heard))
            first, entries = await self._outbox.next()
            heard = first + len(entries)
            for entry in entries:
                if isinstance(entry.event, Terminal):
                    self._ended.pop(entry.event.id).set_result(None)


async def play_round(play: Callable[[EpisodeOrder], Awaitable[Scored]], round_: int, at_once: int) -> tuple[int, float]:
    """Tokens of the round's episodes, and the seconds that they took, `at_once` of them under way."""
    room = asyncio.Semaphore(at_once // GROUP)

    async def group(orders: list[EpisodeOrder]) -> int:
        async with room:
            return sum(len(one.trajectory.token_ids) for one in await asyncio.gather(*map(play, orders)))

    began = time.perf_counter()
    tokens = sum(await asyncio.gather(*map(group, groups_of(round_))))
    return tokens, time.perf_counter() - began


async def measure(folder: Path) -> dict[str, float]:
    alone = Alone(folder)
    await alone.policy.name_version(0)
    launch = launcher(
        RolloutEngine,
        PlacementConfig(engine_cpus=1.0),
        ExecutorActor(make_tools, ExecutorConfig(), {"num_cpus": 0}),
        str(folder),
        config=ENGINE,
        agent=AGENT,
        reward=RewardConfig(),
        seed=0,
    )
    pool = EnginePool(launch, PoolConfig(), AGENT, places=2 * ENGINE.max_concurrent, patience_s=60.0)
    pool.add()
    figures: dict[str, float] = {}
    rounds = itertools.count()
    try:
        await pool.ready()
        for at_once in AT_ONCE:
            ratios: list[float] = []
            rates: list[float] = []
            for round_ in itertools.islice(rounds, 1 + ROUNDS):
                tokens, by_itself = await play_round(alone.play, round_, at_once)
                same, by_pool = await play_round(pool.play, round_, at_once)
                assert tokens == same, "both sides play the same episodes"
                ratios.append(by_itself / by_pool)
                rates.append(tokens / by_pool)
            # The first round compiles the grammars.
            figures |= {f"ratio_{at_once}": median(ratios[1:]), f"tokens_per_s_{at_once}": median(rates[1:])}
    finally:
        await pool.stop()
        alone.reading.cancel()
        alone.policy.shutdown()
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, session(SessionConfig()):
        make_model(Path(folder))
        figures = asyncio.run(measure(Path(folder)))
    report("rollout", figures, TARGETS)


if __name__ == "__main__":
    main()
