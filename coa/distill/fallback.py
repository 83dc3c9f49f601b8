"""The teacher fallback of RL: if all episodes of a group fail, the team plays the task and its run is imitated.

If no episode succeeds, a group has no learning signal. The team's run is judged and filtered as in distillation, and
joins a later batch as samples to imitate, beside the RL samples (LUFFY, arXiv 2504.14945).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.agent.records import GroupRecord
from coa.bounds import Above0
from coa.distill.filters import Kept
from coa.learning.samples import to_imitate
from coa.types import Sample


@dataclass(frozen=True)
class FallbackConfig:
    """The teacher fallback: the team plays tasks that the policy failed in every episode of a group, and the policy
    imitates its kept runs."""

    attempts: int = 0
    """Number of team runs for a task that the policy failed in every episode of a group; 0 for no fallback."""
    weight: Above0 = 1.0
    """Weight in the loss of a token that is imitated from the team."""
    share: Above0 = 0.25
    """Maximum number of imitated samples in a batch, as a share of a full batch's episodes. While that many samples
    wait, the team gets no further task."""


def failed_altogether(group: GroupRecord) -> bool:
    """Whether no episode was both right and rewarded; a right answer in the wrong format counts as failed."""
    return not any(episode.correct and episode.reward > 0 for episode in group.episodes)


def imitations(kept: Iterable[Kept], codec: Codec, agent: AgentConfig, weight: float) -> Iterator[Sample]:
    """The samples of the runs, each repeated by its number of copies; runs longer than the maximum episode are left
    out."""
    for run in kept:
        task = run.transcript.task
        chain = codec.demonstration(task, run.chain, agent.profile(task.profile), instructed=agent.instructed)
        if len(chain.token_ids) <= agent.limits.max_tokens:
            yield from repeat(to_imitate(chain.token_ids, chain.action_mask, weight), run.copies)
