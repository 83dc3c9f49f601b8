"""Messages between the driver and rollout engines: frozen dataclasses that import neither vLLM nor torch.

driver ──── Order ───────► engine          start(orders, received), cancel(ids): both may be retried
driver ◄── EventBatch ─── engine           events(after, wait_s): one long poll at a time, acknowledged by the next
driver ◄─── Result ────── engine           take(ids): one return value each, owned by the driver; then acknowledge(ids)

`events(after, wait_s)` returns as soon as there is an event numbered `after` or above, or after `wait_s` seconds
without one. It acknowledges the events below `after`; `start` acknowledges those below `received`. An episode that
failed or was cancelled may be started again once the event that reports this is acknowledged; until then `start`
ignores its id, because such an order was sent before its sender knew. `cancel` returns the number of events at that
moment; no later event is about the cancelled episodes. `sync` raises SyncError if it fails before vLLM's update begins,
and the engine continues with the old version; it raises WeightsGone if it fails later: the engine stays paused until
a sync succeeds.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from actors.rollout.config import SamplingConfig
from actors.weights.manifest import Weights
from actors.weights.transport import Published
from coa.agent.episode import AgentConfig
from coa.agent.journal import Delta, Journal, Said
from coa.types import Floats, Scored, Task, Tokens, Trajectory

if TYPE_CHECKING:
    import vllm

EVALUATION = -1
"""Group number of episodes that are not trained on."""


@dataclass(frozen=True, slots=True)
class EpisodeId:
    """Permanent name of an episode: an attempt on another engine has the same name, and therefore the same seeds."""

    task: str
    group: int
    """Number of the group in its start of the learners; EVALUATION for episodes that are not trained on."""
    sample: int
    """Index within the group."""
    serial: int = 0
    """Distinguishes episodes with the same seeds, such as a task's episodes in two starts of the learners, or a greedy
    and a sampled evaluation of a task. No seed depends on it."""
    call: int = 0
    """Number of a program's call to the policy in its episode, from 1; 0 for an episode of our own agent. No seed
    depends on it."""


@dataclass(frozen=True, slots=True)
class CallId:
    """Permanent name of a tool call, the same on every engine."""

    episode: EpisodeId
    turn: int
    """Number of the policy's turns before the call."""
    part: int = 0
    """0 for the policy's own call; graders' calls are numbered from 1."""


class EventLevel(StrEnum):
    """Which events an episode reports."""

    TURNS = "turns"
    UNFINISHED = "unfinished"
    """As TURNS, plus the tokens of a turn that is cut off."""
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeOrder:
    """An episode to play, from its beginning or from the state in which another engine left it."""

    id: EpisodeId
    task: Task
    sampling: SamplingConfig
    agent: AgentConfig
    graded: bool = True
    """Whether its answer is graded, and its reward computed."""
    level: EventLevel = EventLevel.TURNS
    journal: Journal = ()
    """Turns and observations that were finished on another engine."""
    begun: Tokens | None = None
    """Tokens of the turn after the journal that were sampled on another engine, if the turn goes on with them."""
    limit_s: float | None = None
    """Maximum seconds for the episode, not counting pauses for weights and starts of engines. An episode over the limit
    fails; an episode of group EVALUATION is cut off and graded instead, and its grading has a limit of its own."""
    salt: str = ""
    """Only episodes of the same salt share KV cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOrder:
    """One turn for a program that asks the policy by itself."""

    id: EpisodeId
    prompt: Tokens
    sampling: "vllm.SamplingParams"
    """As the request asks for it; its seed, log-probs and output are the engine's."""
    draw: int
    """The turn's seed depends on it, in the place of the number of a turn."""
    journal: tuple[Said, ...] = ()
    """The turn, if it was finished on another engine."""
    limit_s: float | None = None
    """Maximum seconds for the turn, as those of an episode."""
    salt: str = ""
    """As that of an episode."""


Order = EpisodeOrder | TurnOrder
Result = Scored | Trajectory | Said
"""Of an order: the graded episode; a Trajectory if the order asks for no grade; the turn of a TurnOrder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advanced:
    """A turn or an observation is finished; the driver appends it to the episode's journal."""

    id: EpisodeId
    delta: Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Streamed:
    """Tokens of a turn under way, at level TOKENS; at UNFINISHED, the tokens of a turn that was cut off."""

    id: EpisodeId
    token_ids: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The episode ended, with any status; its result waits for `take`."""

    id: EpisodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An infrastructure failure ended the episode, after all retries of the failing call."""

    id: EpisodeId
    where: str
    """Type of the failure, such as "ToolDown"."""
    why: str
    tokens: int
    """Tokens of the episode so far, prompt included."""
    tool_calls: int
    """Number of the episode's tool calls, including the failing one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    id: EpisodeId


Terminal = Ended | Failed | Cancelled
Event = Advanced | Streamed | Terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Counters of an engine's KV cache."""

    preemptions: int = 0
    """Requests that lost their place in the cache to an older one, and are computed again."""
    prefill: int = 0
    """Tokens of contexts that requests had to have in the cache before a token could be sampled, cached ones among
    them."""
    recomputed: int = 0
    """Those of them that the engine had computed for the same episode before."""

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
    """Events in order, numbered without gaps from 0 in each incarnation of an engine."""

    incarnation: str
    """Names one start of one engine; batches of an older incarnation are refused."""
    first: int
    """Number of the first event in `events`."""
    events: tuple[Event, ...]
    tokens: int
    """Tokens sampled so far, including turns under way; distinguishes a busy engine from a stuck one."""
    generating: int
    """Generation requests under way. If 0, a lack of new tokens is expected."""
    expected_s: float = 0.0
    """Seconds that the next token may take by the engine's measured pace, for the contexts to compute before it."""
    paused: bool = False
    """Whether vLLM has stopped sampling to load new weights; False while the pause is only requested."""
    kv_use: float = 0.0
    """Share of the KV cache that the contexts of these requests would fill; above 1 if some of them wait."""
    retried: int = 0
    """Calls of tools and graders that were tried again so far."""
    cache: CacheStats = CacheStats()


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A sequence with the learner's log-probs of all tokens but the first, to compare with an engine's."""

    token_ids: Tokens
    logprobs: Floats


@dataclass(frozen=True, slots=True)
class Publication:
    """A version of the weights for engines to load, and how to check that they have."""

    version: int
    weights: Published | Weights
    """`Weights` in memory are a complete safetensors file."""
    probes: tuple[Probe, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of the weights; 0 if unknown."""
        match self.weights:
            case Published(manifest=manifest):
                return manifest.layout.nbytes
            case np.ndarray() as flat:
                return flat.nbytes
            case _:  # a reference to them in Ray's object store
                return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """Report of an engine about a successful sync."""

    version: int
    logprob_diff: float
    """Maximum |learner - engine| over the tokens of the probes."""
    logprob_mean_diff: float
    """The mean of the same."""
    pause_s: float
    """Seconds in which no token was generated."""
    alarm: bool = False
    """Whether one of the two is above its tolerance, or the log-probs are `unmoved`."""
    unmoved: bool = False
    """Whether the engine's log-probs are bit for bit those of the version that was checked before, though the
    learner's are not."""
