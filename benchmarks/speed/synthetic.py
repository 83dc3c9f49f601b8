"""An engine that samples noise at once, and a learner that only takes its time: for what lies between the two.

All else is a run's own: the runner of episodes, the outbox, the pool, the loop, the window, dealing, the buffer, the
object store, packing, and the files of the run directory.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError

from actors.learner.buffer import Finished, Started, Stepped
from actors.learner.step_report import StepReport
from actors.messages import CacheStats, Probe, SyncReport
from actors.rollout import engine
from actors.rollout.clocks import BusyReport, TimeLimits
from actors.rollout.engine import RolloutEngine
from cluster.learner_group import LearnerGroup
from coa.agent.episode import Ask
from coa.agent.journal import Said
from coa.learning.orders import Numbered, Stop, Train
from coa.learning.packing import PackingConfig, pack
from coa.time_accounts import LearnerState, TimeAccount

PACKING = PackingConfig(row_tokens=32_768, rows=1)
WORDS = range(100, 900)
"""Ids of tokens that are said: words, no tags."""


NO_WEIGHTS: Any = "none"
"""In the place of a version: its engines load nothing."""


class Noise:
    """In place of `PolicyAdapter`: each turn is as long as it may be."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.limits = TimeLimits()
        self.tokens = self.generating = self.syncs = 0
        self.paused, self.kv_use, self.expected_s, self.cache = False, 0.0, 0.0, CacheStats()
        self._version = 0

    async def generate(self, ask: Ask, *, seed: int, **_: Any) -> Said:
        random = np.random.default_rng(seed)
        self.tokens += ask.max_tokens
        return Said(
            token_ids=random.integers(WORDS.start, WORDS.stop, ask.max_tokens, np.int32),
            logprobs=random.random(ask.max_tokens, np.float32) - 1,
            versions=((self._version, ask.max_tokens),),
            ended=False,
        )

    def hold(self, episodes: int) -> None:
        pass

    def busy(self) -> BusyReport:
        return BusyReport(())

    async def version(self) -> int:
        return self._version

    async def name_version(self, version: int) -> None:
        self._version = version

    def shutdown(self) -> None:
        pass


class SyntheticEngine(RolloutEngine):
    policy: Any

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        engine.PolicyAdapter = Noise  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(*arguments, **settings)

    async def sync(self, version: int, weights: Any, probes: Any) -> SyncReport:
        await self.policy.name_version(version)
        return SyncReport(version=version, logprob_diff=0.0, logprob_mean_diff=0.0, pause_s=0.0)


class SyntheticRank:
    """The only rank: it takes orders as `actors.learner.loop.Rank` does."""

    def __init__(self, buffer: Any, learn_s: float) -> None:
        self._buffer, self._learn_s = buffer, learn_s
        self._account = TimeAccount(LearnerState.SAMPLES, time.monotonic())
        self._epoch = 0

    def run(self) -> None:
        epoch, number, version = self._ask("begin", 0), 0, 0
        self._epoch = epoch
        self._tell(
            Started(
                version=0,
                cursor=0,
                weights=NO_WEIGHTS,
                probes=(),
                parity="",
                shares_prefixes=True,
                epoch=epoch,
                spent=self._spent(),
            )
        )
        while True:
            self._account.enter(LearnerState.SAMPLES, time.monotonic())
            asked = time.monotonic()
            found: Numbered | None = self._ask("next_order", 0, epoch, number)
            if found is None:
                continue
            number += 1
            if isinstance(found.order, Stop):
                break
            if isinstance(found.order, Train):
                self._train(found.order, time.monotonic() - asked)
                version = found.order.version + 1
        self._tell(Finished(version=version, spent=self._spent()))

    def _train(self, order: Train, order_s: float) -> None:
        began, asked = time.time(), time.monotonic()
        samples = [sample for share in ray.get(list(order.shares[0])) for sample in share]
        fetched = time.monotonic()
        batches = pack(samples, PACKING)
        packed = time.monotonic()
        self._account.enter(LearnerState.LEARNING, packed)
        time.sleep(self._learn_s)
        algorithm = {"order_s": order_s, "fetch_s": fetched - asked, "pack_s": packed - fetched, "rows": len(batches)}
        tokens = sum(int(sample.loss_mask.sum()) for sample in samples)
        report = replace(NOTHING, samples=len(samples), tokens=tokens, algorithm=algorithm)
        self._account.enter(LearnerState.SAMPLES, time.monotonic())
        self._tell(
            Stepped(
                version=order.version + 1,
                report=report,
                began=began,
                ended=time.time(),
                waited=0.0,
                weights=NO_WEIGHTS,
                probes=tuple[Probe, ...](),
                spent=self._spent(),
            )
        )

    def _ask(self, method: str, *arguments: Any) -> Any:
        return ray.get(getattr(self._buffer, method).remote(*arguments))

    def _tell(self, event: Any) -> None:
        self._ask("emit", event, self._epoch)

    def _spent(self) -> Mapping[str, float]:
        return {str(state): seconds for state, seconds in self._account.seconds(time.monotonic()).items()}


NOTHING = StepReport(
    samples=0,
    tokens=0,
    loss=0.0,
    grad_norm=0.0,
    lr=0.0,
    entropy=0.0,
    kl_rollout=0.0,
    clip_fraction=0.0,
    truncated_weight_fraction=0.0,
    ratio_mean=1.0,
    compared=0,
    fresh_tokens=0,
    logprob_max_diff=None,
    logprob_mean_diff=None,
    logprob_gap=0.0,
    logprob_shifted_gap=1.0,
    unsampled=0,
    untrained=0,
    shared_fraction=0.0,
    staleness_mean=0.0,
    staleness_max=0,
    updates=1,
    skipped=0,
    not_finite=None,
    algorithm={},
)


class SyntheticLearnerGroup(LearnerGroup):
    """Its buffer is a run's; behind it is one synthetic rank."""

    learn_s = 0.0
    """Of a step; to be set before they start."""

    async def __aenter__(self) -> "SyntheticLearnerGroup":
        rank: Any = ray.remote(SyntheticRank)
        self._rank: Any = rank.options(num_cpus=0).remote(self._buffer, self.learn_s)
        self._running = asyncio.ensure_future(self._run())
        return self

    async def _run(self) -> None:
        """What the rank raises, `events` raises."""
        try:
            await self._rank.run.remote()
        except RayError as error:
            self._settle(error)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running.cancel()
        self._settle(None)
        await super().__aexit__(kind, error, trace)
        ray.kill(self._rank)

    async def _end(self) -> None:
        """Does nothing: there is no thread of Ray Train's, and the rank is killed in any case."""
