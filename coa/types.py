"""The data that flows through the system, in the order in which it is made.

    Task -> Trajectory -> Scored -> Sample -> Batch

Each step knows more than the one before and is a type of its own; nothing is filled in later. What crosses a
process is frozen and holds NumPy arrays. Axes: T tokens of one trajectory, P policy tokens among them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from coa.unicode import whole

Tokens = NDArray[np.int32]
Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

ENVIRONMENT = -1
"""The version of a token that no policy sampled: prompts, observations, demonstrations."""

NO_GROUP = -1
"""The group of a sample that stands alone: a demonstration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A question with a verifiable answer.

    Task(id="calc-17", question="What is 3 * 4 - 5 ?", answers=("7",), profile="code", family="calc")
    """

    id: str
    question: str
    answers: tuple[str, ...]
    """Every accepted answer; the first is the canonical one."""
    profile: str
    """Name of the agent profile that works on it."""
    family: str
    """Tasks are reported by family."""
    grader: str = "exact"
    """How an answer is compared: a key of `coa.grading.graders.GRADERS`."""
    metadata: str = ""
    """JSON that the grader needs besides the answers; the policy never sees it. Empty for none."""

    def __post_init__(self) -> None:
        """Makes every text one that files, tokenizers and other processes take, wherever the task comes from."""
        for name in ("id", "question", "profile", "family", "grader", "metadata"):
            object.__setattr__(self, name, whole(getattr(self, name)))
        object.__setattr__(self, "answers", tuple(map(whole, self.answers)))


class Status(StrEnum):
    """How an episode ended. Every one of them is data; infrastructure failures are exceptions."""

    ANSWERED = "answered"
    MALFORMED = "malformed"
    """A turn that is not tag text of the profile."""
    TRUNCATED = "truncated"
    """Out of tokens, in a turn or in the episode."""
    OUT_OF_TURNS = "out_of_turns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode as tokens, with who made each.

    prompt [1, 2], the policy says [3, 4], a tool answers [8, 9], the policy says [5]:

        token_ids = [1, 2, 3, 4, 8, 9, 5]
        action_mask = [0, 0, 1, 1, 0, 0, 1]
        logprobs  = [0, 0, a, b, 0, 0, c]     of the sampled tokens, under the weights that sampled them
        versions  = [-1, -1, 0, 0, -1, -1, 1] ENVIRONMENT where no policy sampled

    A demonstration (a distilled chain) has the same layout with zero log-probs and no versions: what the policy
    is to say is marked `action_mask`, though no policy has sampled it yet.
    """

    task_id: str
    sample: int
    """Index within the group."""
    token_ids: Tokens
    action_mask: Mask
    logprobs: Floats
    versions: Tokens
    prompt_length: int
    turns: int
    """Calls of the policy."""
    tool_calls: tuple[str, ...]
    """Tool names, in order."""
    status: Status
    answer: str
    """Body of the answer tag; empty unless `status` is ANSWERED."""
    text: str
    """The chain as tag text, without the prompt."""
    transitions_hold: bool
    """Whether each tag was one that may follow the tags before it."""
    repairs: tuple[str, ...] = ()
    """Errors of its form that lenient parsing accepted."""

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.action_mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(f"token_ids, action_mask, logprobs and versions differ in length: {sorted(lengths)}")
        if self.action_mask[: self.prompt_length].any():
            raise ValueError("the prompt is never made by the policy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A graded episode."""

    trajectory: Trajectory
    grade: float
    """Grade of the answer by the task's own grader, 0 to 1; its spread decides whether a group is used."""
    correct: bool
    well_formed: bool
    reward: float
    """Shaped: what advantages are made of."""
    others: tuple[Trajectory, ...] = ()
    """Further contexts of an episode that has several: those of sub-agents, and those before a history was shortened. A
    token that the policy sampled is in the `action_mask` of one of them."""
    unused: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of responses of the policy that are not trained, by reason (`coa.agent.programs.tree.Unused`)."""

    @property
    def contexts(self) -> tuple[Trajectory, ...]:
        return self.trajectory, *self.others


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One trainable token sequence; per token, what it is for.

    A token's loss is  -imitate * logp,  and what the algorithm makes of `reinforce`. Distillation sets `imitate`,
    reinforcement sets `reinforce` (the advantage), and a token outside of `loss_mask` is only context.

        token_ids = [1, 2, 3, 4, 8, 9, 5]
        imitate   = [0, 0, 0, 0, 0, 0, 0]
        reinforce = [0, 0, .7, .7, 0, 0, .7]
        loss_mask = [0, 0, 1, 1, 0, 0, 1]     the tokens that count in the loss's denominator
    """

    token_ids: Tokens
    loss_mask: Mask
    imitate: Floats
    reinforce: Floats
    rollout_logprobs: Floats
    versions: Tokens
    group: int = NO_GROUP
    """Number of its group in the run: an update takes whole groups, on whichever ranks their samples are."""

    def __len__(self) -> int:
        return len(self.token_ids)
