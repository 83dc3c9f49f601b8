"""A rollout engine: the actor that holds a policy on vLLM and the runner that plays episodes on it.

start(orders) --> episodes --> events(after, wait_s), long polls --> take(ids), one value each --> acknowledge(ids)
sync(version, weights) --> take, pause, load, check, resume; episodes under way continue under the new weights
sleep() --> frees its device's memory for the learners until the next sync
"""

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np

from actors.garbage import freeze_gc
from actors.messages import EpisodeId, EventBatch, Order, Probe, Result, SyncReport
from actors.outbox import Outbox, pace_of
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.clocks import BusyReport
from actors.rollout.config import EngineConfig
from actors.rollout.runner import Entry, EpisodeRunner
from actors.weights.loader import answered
from actors.weights.manifest import Weights
from actors.weights.transport import Published
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.errors import WrongVersion
from coa.grading.rewards import RewardConfig
from coa.tools.client import Executor, RetryConfig, ToolCaller
from coa.types import Floats, Tokens

logger = logging.getLogger(__name__)


class RolloutEngine:
    """A plain class; on Ray it is an async actor with many calls under way at once."""

    def __init__(
        self,
        model_dir: str,
        *,
        config: EngineConfig,
        agent: AgentConfig,
        reward: RewardConfig,
        tools: Executor,
        seed: int,
        retry: RetryConfig | None = None,
        incarnation: str | None = None,
        gpus: float = 0.0,
    ) -> None:
        """`incarnation`: unique name of this start of this engine. `gpus`: reserved for it."""
        self._config = config
        self.incarnation = incarnation or uuid4().hex
        codec = Codec.load(Path(model_dir))
        self.policy = PolicyAdapter(
            model_dir, config, max_tokens=agent.limits.max_tokens, tag_tokens=codec.tag_tokens(), gpus=gpus
        )
        self._answers: ProbeAnswers = {}
        self._answered: int | None = None
        """The log-probs of the last check, and its version."""
        self._outbox: Outbox[Entry] = Outbox(lambda: pace_of(self._runner.under_way))
        self._runner = EpisodeRunner(
            self.policy,
            ToolCaller(tools, self.incarnation),
            codec=codec,
            reward=reward,
            seed=seed,
            retry=retry or RetryConfig(),
            outbox=self._outbox,
            count=self.policy.hold,
        )

    async def ready(self, version: int = 0) -> int:
        """Returns the engine's process id once it is ready. Before the first load it sets the version of the weights
        that the engine started with, and raises StaleWeights if weights loaded later would not take effect."""
        await self.policy.name_version(version)
        freeze_gc()
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

    async def start(self, orders: Sequence[Order], received: int = 0) -> None:
        """Plays episodes. An episode that is already known (under way, or ended and not yet acknowledged) is left as it
        is.

        `received`: number of events that the driver has; acknowledges them.
        """
        self._acknowledge(received)
        self._runner.start(orders)

    async def cancel(self, ids: Sequence[EpisodeId]) -> int:
        """Ends episodes and forgets their results; unknown ones are ignored.

        Returns the number of events once they have ended; no later event is about these episodes.
        """
        await self._runner.cancel(ids)
        return self._outbox.end

    async def events(self, after: int, wait_s: float | None = None) -> EventBatch:
        """The events numbered `after` and above, as soon as there is one; those below are acknowledged.

        The batch is empty after `wait_s` seconds without an event, or when a newer poll arrives. Raises whatever an
        episode raised other than an InfrastructureError.
        """
        self._acknowledge(after)
        first, entries = await self._outbox.next(wait_s)
        return EventBatch(
            incarnation=self.incarnation,
            first=first,
            events=tuple(entry.event for entry in entries),
            tokens=self.policy.tokens,
            generating=self.policy.generating,
            expected_s=self.policy.expected_s,
            paused=self.policy.paused,
            kv_use=self.policy.kv_use,
            retried=self._runner.retried,
            cache=self.policy.cache,
        )

    def _acknowledge(self, received: int) -> None:
        self._runner.acknowledge(self._outbox.acknowledge(received))

    async def take(self, ids: Sequence[EpisodeId]) -> tuple[Result, ...]:
        """The results of episodes that have ended, in the order of `ids`; they are kept until they are acknowledged."""
        return tuple(self._runner.results[id] for id in ids)

    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None:
        """Forgets the results of episodes, so that episodes with these ids may be played again."""
        self._runner.forget(ids)

    # --- weights --------------------------------------------------------------------------------------------------

    async def sync(self, version: int, weights: Published | Weights, probes: Sequence[Probe]) -> SyncReport:
        """Loads weights and checks them (see `actors.weights.loader` for the steps and errors).

        Episodes under way are paused meanwhile and continue afterwards.
        """
        pause_s = await self.policy.load(version, weights)
        return await self.check(version, probes, pause_s=pause_s)

    async def sleep(self) -> None:
        """Frees the device's memory until the next `sync` (`engine.sleep_mode`); no episode may be under way."""
        await self.policy.sleep()

    async def check(self, version: int, probes: Sequence[Probe], *, pause_s: float = 0.0) -> SyncReport:
        """Compares the engine with the learner. A different version raises WrongVersion; a difference of log-probs is
        reported, with an alarm above the tolerance, or if they did not change with the learner's. Log-probs may differ
        slightly, since engine and learner compute them with different code. Raises EngineDied if the core does not
        answer."""
        if (runs := await answered(self.version(), self.policy.patience_s())) != version:
            raise WrongVersion(f"engine runs version {runs}, not {version}")
        limit_s = self.policy.patience_s(sum(len(probe.token_ids) for probe in probes))
        found = await answered(asyncio.gather(*(self.logprobs(probe.token_ids) for probe in probes)), limit_s)
        pairs = zip(probes, found, strict=True)
        answers = {probe.token_ids.tobytes(): ProbeAnswer(probe.logprobs, ours) for probe, ours in pairs}
        # The learner may compute a version again, and round differently.
        before = {} if version == self._answered else self._answers
        self._answered, self._answers = version, answers
        apart = differences(answers)
        # NaN stays NaN here and counts as above the tolerance.
        worst, mean = float(np.max(apart, initial=0.0)), float(apart.sum(dtype=np.float64) / max(len(apart), 1))
        same = unmoved(before, answers)
        alarm = same or not (worst <= self._config.probe_tolerance and mean <= self._config.mean_tolerance)
        if same:
            logger.warning("version %d: log-probs are those from before it was loaded", version)
        elif alarm:
            logger.warning(
                "version %d: log-probs of engine and learner differ by up to %.2e, %.2e on average, more than "
                "engine.probe_tolerance=%.0e, or a tenth of it",
                version,
                worst,
                mean,
                self._config.probe_tolerance,
            )
        return SyncReport(
            version=version,
            logprob_diff=worst,
            logprob_mean_diff=mean,
            pause_s=pause_s,
            alarm=alarm,
            unmoved=same,
        )


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """Log-probs of all tokens of a probe sequence but the first."""

    learner: Floats
    engine: Floats


ProbeAnswers = Mapping[bytes, ProbeAnswer]
"""By the sequence's token ids."""


def differences(answers: ProbeAnswers) -> Floats:
    """|learner - engine| of all tokens."""
    return np.concatenate([*(np.abs(one.engine - one.learner) for one in answers.values()), np.zeros(0, np.float32)])


def unmoved(before: ProbeAnswers, now: ProbeAnswers) -> bool:
    """Whether the engine's log-probs of the sequences in both are what they were, bit for bit, though the learner's
    have changed: it did not take the new weights.

    In bfloat16, engine and learner differ by more than consecutive versions do, so no tolerance between the two could
    tell this. Kernels that round differently beside other requests hide it for this version.
    """
    pairs = [(before[key], answer) for key, answer in now.items() if key in before]
    taught = any(not np.array_equal(old.learner, new.learner) for old, new in pairs)
    return taught and all(np.array_equal(old.engine, new.engine) for old, new in pairs)
