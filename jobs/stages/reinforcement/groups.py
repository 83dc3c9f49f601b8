"""A group: the episodes of one task, the orders for them, and the training samples made of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from actors.messages import EpisodeId, EpisodeOrder
from cluster.pool import Player
from coa.agent.episode import AgentConfig
from coa.agent.records import GroupRecord, record_of
from coa.concurrency import together
from coa.errors import EpisodeFailed, InfrastructureError
from coa.learning.algorithms import BUILT_IN
from coa.learning.algorithms.base import Algorithm
from coa.learning.algorithms.policy_gradient import GroupRelative
from coa.learning.algorithms.ppo import Ppo
from coa.learning.algorithms.reinforce_pp import ReinforcePp
from coa.learning.dealing import deal_updates
from coa.learning.faults import Credit, of_credit
from coa.learning.samples import is_trained
from coa.learning.window import Ticket
from coa.types import Sample, Scored, Task
from jobs.recipe.schema import RlConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A group that was played and graded."""

    number: int
    index: int
    """Index of its task in the stage's stream."""
    task: Task
    episodes: tuple[Scored, ...]

    def record(self) -> GroupRecord:
        return GroupRecord(group=self.number, task=self.task, episodes=tuple(map(record_of, self.episodes)))

    def failed(self, error: InfrastructureError) -> EpisodeFailed:
        """The failure of the whole group, with the length of its longest episode."""
        longest = max((one.trajectory for one in self.episodes), key=lambda one: len(one.token_ids))
        tokens, calls = len(longest.token_ids), len(longest.tool_calls)
        return EpisodeFailed(type(error).__name__, str(error), tokens=tokens, tool_calls=calls)

    def faults(self, samples: Sequence[Sample], algorithm: Algorithm, *, mask_truncated: bool) -> list[str]:
        """The silent errors of its samples' advantages. Nothing is known of those of other algorithms, and of relative
        ones only if the group is complete."""
        kept = [one for one in self.episodes if is_trained(one, mask_truncated=mask_truncated)]
        credit = credit_of(algorithm)
        if credit is None or (credit is Credit.relative and len(kept) < len(self.episodes)):
            return []
        # All contexts of an episode have its advantage.
        firsts = accumulate((len(episode.contexts) for episode in kept[:-1]), initial=0)
        mains = [samples[first] for first in firsts]
        return of_credit(self.number, mains, [episode.reward for episode in kept], credit)


def credit_of(algorithm: Algorithm) -> Credit | None:
    """None if nothing is known of its advantages: a user's algorithm may override those of its base class."""
    if type(algorithm) not in BUILT_IN.values():
        return None
    match algorithm:
        case GroupRelative() | ReinforcePp(baseline=True):
            return Credit.relative
        case Ppo() | ReinforcePp():
            return Credit.rewards
        case _:
            return None


GROUPS_A_START = 1_000_000
"""Number of group numbers that are reserved for each start of the learners."""


def first_group(start: int, cursor: int | Sequence[int]) -> int:
    """The number of the first group of a start, whose tasks continue at `cursor`. If no group fails, the position of a
    group among the numbers of its start is that of its task in the stream, even after restarts."""
    return start * GROUPS_A_START + (cursor if isinstance(cursor, int) else cursor[0])


def orders_of(task: Task, group: int, config: RlConfig, agent: AgentConfig) -> list[EpisodeOrder]:
    """Orders for a group's episodes. Seeds follow from the ids without the number of the start, so they are the same
    wherever and however often an episode is played."""
    start, place = divmod(group, GROUPS_A_START)
    return [
        EpisodeOrder(
            id=EpisodeId(task.id, place, sample, start),
            task=task,
            sampling=config.sampling,
            agent=agent,
            limit_s=agent.limits.max_seconds,
        )
        for sample in range(config.group)
    ]


def limited(agent: AgentConfig, config: RlConfig, version: int) -> AgentConfig:
    """The agent of groups that are admitted under `version`, so that a group's episodes have the same token limit."""
    if version >= config.short_steps:
        return agent
    return replace(agent, limits=replace(agent.limits, max_tokens=config.short_tokens))


async def play_group(
    pool: Player, task: Task, ticket: Ticket, index: int, config: RlConfig, agent: AgentConfig
) -> Group:
    """Plays all episodes of a group at once. If one fails for good, the others are cancelled: raises EpisodeFailed."""
    orders = orders_of(task, ticket.group, config, limited(agent, config, ticket.version))
    episodes = await together(pool.play(order) for order in orders)
    return Group(number=ticket.group, index=index, task=task, episodes=tuple(episodes))


def shares(samples: Sequence[Sample], replicas: int, updates: int, *, share: bool) -> list[tuple[Sample, ...]]:
    """The share of a batch for each rank, or group of ranks that share rows, balanced in each update by the tokens that
    are computed and by attention cost. share: whether tokens with which samples begin alike are computed once."""
    token_ids, groups = [sample.token_ids for sample in samples], [sample.group for sample in samples]
    dealt = deal_updates(token_ids, groups, replicas, updates, share=share)
    return [tuple(samples[i] for i in one) for one in dealt]
