"""Records of episodes and groups, as they are written to files and reported."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from coa.types import ENVIRONMENT, Scored, Status, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """An episode as numbers and text, without its arrays."""

    sample: int
    grade: float
    """Grade of the answer, 0 to 1."""
    reward: float
    correct: bool
    well_formed: bool
    repairs: tuple[str, ...]
    """Small errors of form that were understood and repaired (`coa.agent.lenient`)."""
    status: Status
    answer: str
    text: str
    turns: int
    tool_calls: tuple[str, ...]
    tokens: int
    """Number of tokens: prompt, policy and observations together."""
    policy_tokens: int
    tokens_sent: int
    """Sum over all turns of the tokens of the context and of the turn (see `tokens_sent`)."""
    oldest: int
    """Oldest version that sampled one of its tokens; ENVIRONMENT if no token was sampled."""
    newest: int
    unused: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of the policy's responses that are not trained, by reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    group: int
    task: Task
    episodes: tuple[EpisodeRecord, ...]

    @property
    def rewards(self) -> list[float]:
        return [episode.reward for episode in self.episodes]


def tokens_sent(action_mask: np.ndarray) -> int:
    """The tokens sent to and received from the policy, over all turns of an episode: a turn that ends at offset e
    counts e tokens, its context and its own.

    For action_mask [0, 0, 1, 1, 0, 1], turns end at 4 and 6, which makes 10.
    """
    ends = np.flatnonzero(action_mask & ~np.append(action_mask[1:], False)) + 1
    return int(ends.sum())


def record_of(scored: Scored) -> EpisodeRecord:
    trajectory, contexts = scored.trajectory, scored.contexts
    sampled = np.concatenate([context.versions[context.action_mask] for context in contexts])
    return EpisodeRecord(
        sample=trajectory.sample,
        grade=scored.grade,
        reward=scored.reward,
        correct=scored.correct,
        well_formed=scored.well_formed,
        repairs=trajectory.repairs,
        status=trajectory.status,
        answer=trajectory.answer,
        text=trajectory.text,
        turns=trajectory.turns,
        tool_calls=trajectory.tool_calls,
        tokens=sum(len(context.token_ids) for context in contexts),
        policy_tokens=len(sampled),
        tokens_sent=sum(tokens_sent(context.action_mask) for context in contexts),
        oldest=int(sampled.min()) if len(sampled) else ENVIRONMENT,
        newest=int(sampled.max()) if len(sampled) else ENVIRONMENT,
        unused=scored.unused,
    )
