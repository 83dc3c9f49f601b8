"""What crosses between the driver and rollout engines: frozen, and free of vLLM and torch.

driver ── EpisodeOrder ──► engine          start(orders, heard), cancel(ids): both may be sent again
driver ◄── EventBatch ─── engine           events(after, wait_s): one outstanding long poll, acknowledged by the next
driver ◄── Scored ─────── engine           take(ids): a return value each, the driver's own; then acknowledge(ids)

`events(after, wait_s)` is answered at the first event numbered `after` or above, and after `wait_s` seconds without
one; events below `after` are acknowledged, and so are those below `heard`. An episode that failed or was cancelled may
be started again once the event that says so is acknowledged; until then `start` ignores its id, because such an order
was sent before its sender knew. `cancel` gives the number of events that there are then, and none after those tells of
what was cancelled. `sync`
raises SyncError where it fails before vLLM's update begins, and the old version goes on; WeightsGone where it fails
later, and the engine stays paused until a complete one.
"""

from dataclasses import dataclass
from enum import StrEnum

from actors.rollout.config import SamplingConfig
from coa.agent.episode import AgentConfig
from coa.agent.journal import Delta, Journal
from coa.types import Floats, Task, Tokens

EVALUATION = -1
"""The group number of episodes that nothing is learnt from."""


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """Names an episode for good: an attempt at it on another engine has the same name, and with it the same seeds."""

    task: str
    group: int
    """Number of the group in its start of the learners; EVALUATION for episodes that nothing is learnt from."""
    sample: int
    """Index within the group."""
    serial: int = 0
    """Tells episodes apart that share their seeds, such as those of a task in two starts of the learners, or a greedy
    and a sampled evaluation of it: no seed depends on it."""


@dataclass(frozen=True, slots=True)
class CallId:
    """Names a tool call for good, whichever engine makes it."""

    episode: EpisodeId
    turn: int
    """Turns of the policy before it."""
    part: int = 0
    """0 is the policy's own call; graders' calls are numbered from 1."""


class EventLevel(StrEnum):
    """How closely an episode is followed."""

    TURNS = "turns"
    UNFINISHED = "unfinished"
    """As TURNS, and where a turn is cut off, the tokens that it had."""
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOrder:
    """An episode to play, from its beginning or from where another engine left it."""

    id: EpisodeId
    task: Task
    sampling: SamplingConfig
    agent: AgentConfig
    graded: bool = True
    """Whether its answer is graded, and its reward computed."""
    level: EventLevel = EventLevel.TURNS
    journal: Journal = ()
    """What was finished of it elsewhere."""
    limit_s: float | None = None
    """Seconds that it may take in all, without pauses for weights and starts of engines. Over them it fails; an episode
    of group EVALUATION is cut off and graded instead, and its grading does not count."""
    salt: str = ""
    """Episodes share their KV cache with those of the same salt only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """A turn or an observation was finished: the driver keeps it in the episode's journal."""

    id: EpisodeId
    delta: Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """Tokens of a turn under way, at level TOKENS only."""

    id: EpisodeId
    token_ids: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The episode came to its end, whatever its status; its result waits for `take`."""

    id: EpisodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An infrastructure failure ended the episode, after the failing call was tried as often as it may be."""

    id: EpisodeId
    where: str
    """Type of the failure, such as "ToolDown"."""
    why: str
    tokens: int
    """That the policy and its tools had added to the prompt."""
    tool_calls: int
    """Calls that it had made, the failing one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    id: EpisodeId


Terminal = Ended | Failed | Cancelled
Event = Advanced | Streamed | Terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """What an engine has done for its KV cache so far."""

    preemptions: int = 0
    """Requests that lost their place in the cache to an older one, and are computed again."""
    prefill: int = 0
    """Tokens of contexts that requests had to have in the cache before a token could be sampled, cached ones among
    them."""
    recomputed: int = 0
    """Of these, tokens that the engine had computed for the same episode before, and computed again."""

    def __add__(self, other: "CacheStats") -> "CacheStats":
        return CacheStats(
            preemptions=self.preemptions + other.preemptions,
            prefill=self.prefill + other.prefill,
            recomputed=self.recomputed + other.recomputed,
        )

    def __sub__(self, other: "CacheStats") -> "CacheStats":
        return CacheStats(
            preemptions=self.preemptions - other.preemptions,
            prefill=self.prefill - other.prefill,
            recomputed=self.recomputed - other.recomputed,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EventBatch:
    """Events in order, numbered from 0 for each incarnation of an engine without a gap."""

    incarnation: str
    """Names one start of one engine; what an older one says is refused."""
    first: int
    """Number of the first of `events`."""
    events: tuple[Event, ...]
    tokens: int
    """Sampled so far, those of turns under way among them: what tells a busy engine from a stuck one."""
    generating: int
    """Requests for tokens under way: with none, no new token is no sign of trouble."""
    paused: bool = False
    """Whether vLLM has stopped sampling for new weights; False while it has only been asked to."""
    kv_use: float = 0.0
    """Share of the KV cache that the contexts of these requests would fill; more than 1 where some of them wait."""
    retried: int = 0
    """Calls of tools and graders that were tried again so far."""
    cache: CacheStats = CacheStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A sequence with the learner's log-probs of all its tokens but the first, to hold an engine's against."""

    token_ids: Tokens
    logprobs: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """What an engine says of a sync that succeeded."""

    version: int
    logprob_diff: float
    pause_s: float
    """For how long no token was generated."""
    alarm: bool = False
    """Whether `logprob_diff` is above the tolerance."""
