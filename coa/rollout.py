"""A group of episodes, from the task to what is learnt from it and what is told of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coa.codec import Codec
from coa.credit import credit, to_reinforce
from coa.episode import AgentConfig, Generate, run_episode
from coa.rewards import RewardConfig, score
from coa.tools.base import UseTool
from coa.types import ENVIRONMENT, Sample, Scored, Status, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """What is told of an episode: numbers and text, no arrays."""

    sample: int
    reward: float
    correct: bool
    well_formed: bool
    forgiven: tuple[str, ...]
    """What of its form was understood though it was not as it should be (`coa.forgive`)."""
    status: Status
    answer: str
    text: str
    turns: int
    tool_calls: tuple[str, ...]
    tokens: int
    """Prompt, policy and observations."""
    policy_tokens: int
    tokens_sent: int
    """Over all calls of the policy, the context that was sent plus what came back."""
    oldest: int
    """Oldest version that sampled a token of it; ENVIRONMENT where no token was sampled."""
    newest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    group: int
    task: Task
    episodes: tuple[EpisodeRecord, ...]

    @property
    def rewards(self) -> list[float]:
        return [episode.reward for episode in self.episodes]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGroup:
    """A group that met an infrastructure failure: no data, and the task is issued again."""

    group: int
    where: str
    """Type of the failure."""
    why: str


def tokens_sent(by_policy: np.ndarray) -> int:
    """Each policy turn that ends at offset e was a call with the tokens before it, and gave the rest up to e.

    by_policy [0, 0, 1, 1, 0, 1]: calls end at 4 and 6, so 10.
    """
    ends = np.flatnonzero(by_policy & ~np.append(by_policy[1:], False)) + 1
    return int(ends.sum())


def tell(scored: Scored) -> EpisodeRecord:
    trajectory = scored.trajectory
    sampled = trajectory.versions[trajectory.by_policy]
    return EpisodeRecord(
        sample=trajectory.sample,
        reward=scored.reward,
        correct=scored.correct,
        well_formed=scored.well_formed,
        forgiven=trajectory.forgiven,
        status=trajectory.status,
        answer=trajectory.answer,
        text=trajectory.text,
        turns=trajectory.turns,
        tool_calls=trajectory.tool_calls,
        tokens=len(trajectory.token_ids),
        policy_tokens=int(trajectory.by_policy.sum()),
        tokens_sent=tokens_sent(trajectory.by_policy),
        oldest=int(sampled.min()) if len(sampled) else ENVIRONMENT,
        newest=int(sampled.max()) if len(sampled) else ENVIRONMENT,
    )


async def play(
    task: Task,
    samples: Sequence[int],
    *,
    codec: Codec,
    generate: Sequence[Generate],
    use_tool: UseTool,
    agent: AgentConfig,
    reward: RewardConfig,
) -> list[Scored]:
    """One episode per sample, at the same time. The first infrastructure failure ends them all and is raised."""

    async def one(sample: int, speak: Generate) -> Scored:
        trajectory = await run_episode(
            task,
            sample,
            codec=codec,
            generate=speak,
            use_tool=use_tool,
            agent=agent,
        )
        budget = agent.limits.max_tokens - trajectory.prompt_length
        return await score(trajectory, task, reward, budget=budget, use_tool=use_tool)

    tasks = [asyncio.ensure_future(one(sample, speak)) for sample, speak in zip(samples, generate, strict=True)]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for other in tasks:
            other.cancel()


def to_learn(group: Sequence[Scored]) -> tuple[Sample, ...]:
    return tuple(to_reinforce(credited) for credited in credit(group))
