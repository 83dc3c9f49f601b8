"""Records of episodes and groups, as they are written to files and reported."""

from dataclasses import dataclass

import numpy as np

from coa.types import ENVIRONMENT, Scored, Status, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """An episode as numbers and text, without its arrays."""

    sample: int
    grade: float
    """Of the answer, 0 to 1."""
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
    """Of the prompt, the policy and the observations together."""
    policy_tokens: int
    tokens_sent: int
    """Summed over all turns: the context that was sent to the policy, and the turn that came back."""
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


def tokens_sent(action_mask: np.ndarray) -> int:
    """The tokens that all turns of an episode sent and received. A turn that ends at offset e was asked for with the
    tokens before it and brought those up to e, so it counts e tokens.

    For action_mask [0, 0, 1, 1, 0, 1], turns end at 4 and 6, which makes 10.
    """
    ends = np.flatnonzero(action_mask & ~np.append(action_mask[1:], False)) + 1
    return int(ends.sum())


def record_of(scored: Scored) -> EpisodeRecord:
    trajectory = scored.trajectory
    sampled = trajectory.versions[trajectory.action_mask]
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
        tokens=len(trajectory.token_ids),
        policy_tokens=int(trajectory.action_mask.sum()),
        tokens_sent=tokens_sent(trajectory.action_mask),
        oldest=int(sampled.min()) if len(sampled) else ENVIRONMENT,
        newest=int(sampled.max()) if len(sampled) else ENVIRONMENT,
    )
