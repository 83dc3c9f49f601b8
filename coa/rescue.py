"""Teachers in the RL loop: a task whose group fails altogether goes to the team, and what it does is imitated.

Where no episode succeeds there is nothing to prefer. The team's run is judged and filtered as in distillation, and
joins a later batch as samples to imitate, beside the reinforced ones (LUFFY, arXiv 2504.14945).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

from coa.codec import Codec
from coa.distill.filters import Kept
from coa.episode import AgentConfig
from coa.imitation import to_imitate
from coa.profiles import profile as find_profile
from coa.rollout import GroupRecord
from coa.types import Sample


@dataclass(frozen=True)
class RescueConfig:
    attempts: int = 0
    """Runs of the team for each such task; 0 leaves it alone."""
    weight: float = 1.0
    """Of an imitated token; a reinforced one has its advantage."""
    share: float = 0.25
    """Most imitated samples of a batch, for each episode of a full one; of a policy that fails nearly everywhere, a
    batch has more of them than of its own. No task is taken on while as many wait."""

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.weight <= 0 or self.share <= 0:
            raise ValueError("rl.rescue: attempts is not below 0, weight and share are above")


def failed_altogether(group: GroupRecord) -> bool:
    """Whether no episode was right and rewarded for it: one that is right in the wrong form has failed."""
    return not any(episode.correct and episode.reward > 0 for episode in group.episodes)


def imitations(kept: Iterable[Kept], codec: Codec, agent: AgentConfig, weight: float) -> Iterator[Sample]:
    """Each run as often as its copies say, but none that is longer than an episode may be."""
    for run in kept:
        task = run.transcript.task
        chain = codec.demonstration(task, run.chain, find_profile(task.profile), instructed=agent.instructed)
        if len(chain.token_ids) <= agent.limits.max_tokens:
            yield from repeat(to_imitate(chain.token_ids, chain.by_policy, weight), run.copies)
