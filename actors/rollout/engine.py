"""A rollout engine: the actor around a policy on vLLM and the runner that plays episodes on it.

start(orders) --> episodes --> events(after, wait_s), long polls --> take(ids), a return value each --> acknowledge(ids)
sync(version, weights) --> take, pause, load, check, resume; episodes under way go on under the new weights
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np

from actors.messages import EpisodeId, EpisodeOrder, EventBatch, Probe, SyncReport
from actors.outbox import Outbox
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.clocks import BusyReport
from actors.rollout.config import EngineConfig
from actors.rollout.runner import Entry, EpisodeRunner, Result
from actors.weights.loader import answered
from actors.weights.transport import Published
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.errors import WrongVersion
from coa.grading.rewards import RewardConfig
from coa.learning.weights import Weights
from coa.tools.client import Executor, RetryConfig, ToolCaller
from coa.types import Floats, Tokens

logger = logging.getLogger(__name__)
EVENTS_PACE_S = 0.02
"""Between two batches of events: short beside a turn, long beside the round trip of a poll."""


class RolloutEngine:
    """A plain class; on Ray it is an async actor with many calls under way at once."""

    def __init__(
        self,
        model_dir: str,
        *,
        config: EngineConfig,
        agent: AgentConfig,
        reward: RewardConfig,
        executors: Sequence[Executor],
        seed: int,
        retry: RetryConfig | None = None,
        incarnation: str | None = None,
    ) -> None:
        """`executors`: all of them, in the same order for all engines. `incarnation`: names this start of this engine,
        and no other."""
        self._config = config
        self.incarnation = incarnation or uuid4().hex
        codec = Codec.load(Path(model_dir))
        self.policy = PolicyAdapter(
            model_dir, config, max_tokens=agent.limits.max_tokens, tag_tokens=codec.tag_tokens()
        )
        self._outbox: Outbox[Entry] = Outbox(EVENTS_PACE_S)
        self._runner = EpisodeRunner(
            self.policy,
            ToolCaller(executors, self.incarnation),
            codec=codec,
            reward=reward,
            seed=seed,
            retry=retry or RetryConfig(),
            outbox=self._outbox,
        )

    async def ready(self, version: int = 0) -> int:
        """Names the weights that the engine was started with, the first time, once it is shown that what is loaded
        later would be what it computes with (raises StaleWeights); returns its process id."""
        await self.policy.name_version(version)
        return os.getpid()

    async def version(self) -> int:
        return await self.policy.version()

    def busy(self) -> BusyReport:
        return self.policy.busy()

    async def logprobs(self, token_ids: Tokens) -> Floats:
        """Log-probs of all tokens but the first, at temperature 1."""
        return await self.policy.logprobs(token_ids)

    def shutdown(self) -> None:
        self.policy.shutdown()

    # --- episodes -------------------------------------------------------------------------------------------------

    async def start(self, orders: Sequence[EpisodeOrder]) -> None:
        """Plays episodes; one that is known already, under way or ended, is left as it is."""
        self._runner.start(orders)

    async def cancel(self, ids: Sequence[EpisodeId]) -> int:
        """Ends episodes and forgets what became of them; unknown ones are ignored.

        Returns, once they have ended, how many events there are: no later one tells of them.
        """
        await self._runner.cancel(ids)
        return self._outbox.end

    async def events(self, after: int, wait_s: float | None = None) -> EventBatch:
        """The events numbered `after` and above, as soon as there is one; those below are acknowledged.

        Without events after `wait_s` seconds, or where a newer poll comes. Raises what is a defect in an episode.
        """
        self._runner.acknowledge(self._outbox.acknowledge(after))
        first, entries = await self._outbox.next(wait_s)
        return EventBatch(
            incarnation=self.incarnation,
            first=first,
            events=tuple(entry.event for entry in entries),
            tokens=self.policy.tokens,
            generating=self.policy.generating,
            paused=self.policy.paused,
            retried=self._runner.retried,
        )

    async def take(self, ids: Sequence[EpisodeId]) -> tuple[Result, ...]:
        """What became of episodes that have ended, in order; kept until it is acknowledged."""
        return tuple(self._runner.results[id] for id in ids)

    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None:
        """Forgets episodes that have ended, so that one of that id may be played again."""
        self._runner.forget(ids)

    # --- weights --------------------------------------------------------------------------------------------------

    async def sync(self, version: int, weights: Published | Weights, probes: Sequence[Probe]) -> SyncReport:
        """Loads weights, and shows that all of them are there (`actors.weights.loader`, with what it raises).

        Episodes under way are paused meanwhile, not ended.
        """
        pause_s = await self.policy.load(version, weights)
        return await self.check(version, probes, pause_s=pause_s)

    async def check(self, version: int, probes: Sequence[Probe], *, pause_s: float = 0.0) -> SyncReport:
        """Compares the version with the learner's (raises WrongVersion), and log-probs: how far they are apart is
        reported, and an alarm above the tolerance; two ways to compute the same may differ by some. Raises EngineDied
        where the core does not answer."""
        if (runs := await answered(self.version())) != version:
            raise WrongVersion(f"engine runs version {runs}, not {version}")
        differences = await answered(asyncio.gather(*(self._probe(probe) for probe in probes)))
        # NaN stays NaN here, and is no number below the tolerance.
        worst = float(np.max(differences, initial=0.0))
        alarm = not worst <= self._config.probe_tolerance
        if alarm:
            logger.warning(
                "version %d: log-probs of engine and learner differ by %.2e, more than engine.probe_tolerance=%.0e",
                version,
                worst,
                self._config.probe_tolerance,
            )
        return SyncReport(version=version, logprob_diff=worst, pause_s=pause_s, alarm=alarm)

    async def _probe(self, probe: Probe) -> float:
        return float(np.abs(await self.logprobs(probe.token_ids) - probe.logprobs).max())
