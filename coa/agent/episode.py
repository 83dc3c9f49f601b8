"""An episode as a pure state machine: turns of the policy and results of tools alternate in one stream of tokens.

    ask() -> Ask -> (the policy) -> Said -> take_turn() -> ToolCall -> (the tool) -> text -> observe() -> ask() ...

It never waits and is independent of engines, so training, evaluation, serving and tests can all drive it. Its journal
records its turns and observations; an episode resumed from its journal in another process continues identically.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from coa.agent.chain_format import ChainFormat
from coa.agent.codec import Codec
from coa.agent.grammar import ANSWER, TAGS, Form, Kind, Parsed, Profile, Span, goal_of, parse, render
from coa.agent.journal import Delta, Journal, Observed, Said
from coa.agent.lenient import Repair, read
from coa.agent.profiles import PROFILES
from coa.agent.profiles import profile as find_profile
from coa.agent.programs.config import ProgramConfig
from coa.bounds import Above0, AtLeast1
from coa.tools.base import PLAIN, ToolCall, UseTool
from coa.tools.layouts import LAYOUTS, layout_of
from coa.types import ENVIRONMENT, Status, Task, Tokens, Trajectory

REPEATED = "This was asked before, and its result is above. Ask for something else."
"""The observation of a call that is not made again."""


@dataclass(frozen=True)
class Limits:
    """Limits of one episode."""

    max_turns: AtLeast1 = 8
    """Maximum number of turns of the policy; an episode without an answer by then ends without an answer."""
    max_turn_tokens: AtLeast1 = 4096
    """Maximum tokens per turn."""
    max_observation_tokens: AtLeast1 = 4096
    """Maximum tokens of a tool result; the middle of a longer result is cut."""
    max_tokens: AtLeast1 = 32768
    """Maximum tokens of an episode: prompt, turns and observations together."""
    max_tag_tokens: AtLeast1 | None = None
    """Maximum tokens of the text in one tag, with `agent.grammar=enforce`; a tag's own limit, if smaller, still
    applies. None stands for an eighth of `max_turn_tokens`, at most 2048, so that a policy that never closes a tag
    still finishes its turn."""
    max_tool_calls: int | None = None
    """Maximum number of tool calls of an episode; None sets no limit. Further calls are not made: with an enforced
    grammar the policy has to answer instead, otherwise the episode ends as OUT_OF_TURNS."""
    max_seconds: Above0 = 3600.0
    """Maximum seconds of an episode, without pauses for new weights and engine starts. An episode that takes longer
    fails in training and is not used; in an evaluation it ends at that point and counts as truncated."""

    @property
    def tag_tokens(self) -> int:
        return self.max_tag_tokens or max(1, min(2048, self.max_turn_tokens // 8))


class Grammar(Enum):
    """How the form of a turn is ensured."""

    lenient = "lenient"
    """Decoding is free. Small errors of form are repaired and reported; other errors end the episode."""
    enforce = "enforce"
    """Decoding is constrained by the profile's grammar, so that there are no errors of form."""


@dataclass(frozen=True)
class AgentConfig:
    """The prompt, the format and the limits of an agent's episodes; the same in training and evaluation."""

    instructed: bool = True
    """Whether the prompt explains the profile's tags. Set it to false for a model that is trained from scratch, which
    learns them from its data."""
    grammar: Grammar = Grammar.lenient
    """lenient: decoding is free, and small errors in tags are repaired. enforce: decoding is constrained to the
    profile's tags."""
    formats: dict[str, ChainFormat] = field(default_factory=dict[str, ChainFormat])
    """How prompts and chains are written, by profile: `formats.web=FILE` takes both from released rows. A profile that
    is not named is written our own way."""
    layouts: tuple[str, ...] = (PLAIN,)
    """Formats in which tool results are written (plain, numbered, json); if several, each task is assigned one."""
    notice_repeats: bool = False
    """Whether a search or page for which an episode has asked before gets a notice that says so in place of its result,
    as from the tools of the published agents. Programs run again."""
    limits: Limits = field(default_factory=Limits)
    """Limits of one episode."""
    program: ProgramConfig = field(default_factory=ProgramConfig)
    """An agent that somebody else wrote, in place of the profiles."""

    def __post_init__(self) -> None:
        if not self.layouts or not set(self.layouts) <= LAYOUTS.keys():
            raise ValueError(f"layouts: {', '.join(self.layouts) or 'none'}; known are {', '.join(LAYOUTS)}")
        if unknown := sorted(self.formats.keys() - PROFILES.keys()):
            raise ValueError(f"formats: {', '.join(unknown)}; known are {', '.join(PROFILES)}")

    def profile(self, name: str) -> Profile:
        """The profile of that name, in its format; raises UserError with the known names."""
        return find_profile(name, self.formats)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request to the policy for the turn that follows `prompt`."""

    prompt: Tokens
    """All tokens of the episode so far."""
    turn: int
    """Number of the turn, from 0."""
    max_tokens: int
    constraint: str | None
    """The grammar that constrains the turn (`coa.agent.constraint`), if any."""
    begun: Tokens = field(default_factory=lambda: np.zeros(0, np.int32))
    """Tokens that another engine has sampled for the turn, which begins with them."""


Generate = Callable[[Ask], Awaitable[Said]]
"""A policy: `await generate(ask)` is its next turn."""


def well_formed_turn(parsed: Parsed, profile: Profile) -> bool:
    """Whether a finished turn consists of the profile's tags and ends with its only tool call or with the answer."""
    if parsed.fault or not parsed.chain:
        return False
    names = {tag.name for tag in profile.tags}
    stops = (Kind.TOOL, Kind.TERMINAL)
    kinds = [TAGS[span.tag].kind for span in parsed.chain]
    return (
        all(span.tag in names for span in parsed.chain)
        and Kind.ENVIRONMENT not in kinds
        and kinds[-1] in stops
        and not any(kind in stops for kind in kinds[:-1])
    )


class Episode:
    """One episode of a task, from its prompt to its end.

    A malformed turn ends the episode with a status. An episode resumed from its journal continues identically.
    """

    def __init__(self, task: Task, sample: int, *, codec: Codec, agent: AgentConfig) -> None:
        self._task, self._sample, self._codec, self._agent = task, sample, codec, agent
        self._profile = agent.profile(task.profile)
        self._layout = layout_of(task.id, agent.layouts)
        prompt = codec.prompt(self._profile, task.question, instructed=agent.instructed)
        self._context = [prompt]
        """The tokens so far, in pieces: the prompt, then one piece for each delta of the journal."""
        self._journal: list[Delta] = []
        self.length = len(prompt)
        """Number of tokens so far."""
        self.turns = 0
        self._chain: list[Span] = []
        self._said = ""
        """The text of the latest turn."""
        self._unparsed = ""
        self._tools: list[str] = []
        self._repairs: list[Repair] = []
        self._pending: ToolCall | None = None
        self._status = self._out_of_budget()

    @classmethod
    def resume(cls, task: Task, sample: int, journal: Journal, *, codec: Codec, agent: AgentConfig) -> "Episode":
        """The episode with this journal, in the state that it had when the journal was written."""
        episode = cls(task, sample, codec=codec, agent=agent)
        for delta in journal:
            match delta:
                case Said():
                    episode.take_turn(delta)
                case Observed():
                    episode._see(delta)
        return episode

    @property
    def journal(self) -> Journal:
        return tuple(self._journal)

    @property
    def latest(self) -> Delta:
        """The last entry of the journal."""
        return self._journal[-1]

    @property
    def status(self) -> Status | None:
        """How the episode ended; None until it has ended."""
        return self._status

    @property
    def pending(self) -> ToolCall | None:
        """The tool call whose result is to be observed next."""
        return self._pending

    @property
    def notice(self) -> str | None:
        """What is to be observed in place of a result, if the pending call is one that is not made again."""
        call = self._pending
        if call is None or not self._agent.notice_repeats or TAGS[call.tool].form is not Form.LINE:
            return None
        asked = (span.text.strip() for span in self._chain[:-1] if span.tag == call.tool)
        return REPEATED if call.argument in asked else None

    @property
    def tool_calls(self) -> int:
        """Number of tool calls so far, a pending one included."""
        return len(self._tools)

    def ask(self) -> Ask:
        """The next request to the policy; raises ValueError if it is not the policy's turn."""
        self._expect(ask=True)
        limits = self._agent.limits
        constraint = None
        if self._agent.grammar is Grammar.enforce:
            constraint = self._codec.constraint(
                self._profile,
                self._profile.state(self._chain),
                last=self.turns == limits.max_turns - 1 or self._out_of_calls(),
                max_tag_tokens=limits.tag_tokens,
            )
        return Ask(
            prompt=np.concatenate(self._context), turn=self.turns, max_tokens=self._room(), constraint=constraint
        )

    def take_turn(self, said: Said) -> ToolCall | None:
        """Takes the policy's turn; returns its tool call, or None if the episode has ended with this turn."""
        self._expect(ask=True)
        self._add(said, said.token_ids)
        self.turns += 1
        self._said = text = self._codec.decode_turn(said.token_ids)
        reading = read(text, self._profile.format)
        if not said.ended or not well_formed_turn(reading.parsed, self._profile):
            self._status, self._unparsed = Status.MALFORMED if said.ended else Status.TRUNCATED, text
            return None
        self._repairs.extend(reading.repairs)
        self._chain.extend(reading.parsed.chain)
        last = self._chain[-1]
        if last.tag == ANSWER or self._out_of_calls():
            self._status = Status.ANSWERED if last.tag == ANSWER else Status.OUT_OF_TURNS
            return None
        self._tools.append(last.tag)
        self._pending = ToolCall(last.tag, last.text.strip(), goal_of(self._chain), self._layout)
        return self._pending

    def observe(self, text: str) -> None:
        """Takes the pending tool call's result."""
        limit, form = self._agent.limits.max_observation_tokens, self._profile.format
        token_ids = self._codec.observation(text, limit=limit, form=form, behind=self._said)
        self._see(Observed(token_ids=np.array(token_ids, np.int32)))

    def _see(self, observed: Observed) -> None:
        self._expect(ask=False)
        # If there is room for only a part of the observation, the episode ends with that part.
        self._add(observed, observed.token_ids[: self._agent.limits.max_tokens - self.length])
        self._chain.extend(parse(self._codec.decode(observed.token_ids), self._profile.format).chain)
        self._pending = None
        self._status = self._out_of_budget()

    def cut_off(self) -> None:
        """Ends the episode at once, as TRUNCATED; raises ValueError if it has ended already."""
        if self._status is not None:
            raise ValueError(f"{self._task.id}, sample {self._sample}: has ended: {self._status}")
        self._pending = None
        self._status = Status.TRUNCATED

    def _expect(self, *, ask: bool) -> None:
        if self._status is not None or (self._pending is None) != ask:
            state = self._status or ("the policy's turn" if self._pending is None else "a tool's turn")
            raise ValueError(f"{self._task.id}, sample {self._sample}: not now: {state}")

    def _add(self, delta: Delta, context: Tokens) -> None:
        self._journal.append(delta)
        self._context.append(context)
        self.length += len(context)

    def _room(self) -> int:
        """Maximum number of tokens of the next turn."""
        limits = self._agent.limits
        return min(limits.max_turn_tokens, limits.max_tokens - self.length)

    def _out_of_calls(self) -> bool:
        most = self._agent.limits.max_tool_calls
        return most is not None and len(self._tools) >= most

    def _out_of_budget(self) -> Status | None:
        if self.turns >= self._agent.limits.max_turns:
            return Status.OUT_OF_TURNS
        return Status.TRUNCATED if self._room() <= 0 else None

    def trajectory(self) -> Trajectory:
        """The trajectory of the ended episode; raises ValueError if it has not ended."""
        if self._status is None:
            raise ValueError(f"{self._task.id}, sample {self._sample}: has not ended")
        action_mask, logprobs, versions = [], [], []
        for delta, ids in zip((None, *self._journal), self._context, strict=True):
            by_policy = isinstance(delta, Said)
            action_mask.append(np.full(len(ids), by_policy))
            logprobs.append(delta.logprobs if by_policy else np.zeros(len(ids), np.float32))
            versions.append(delta.version_of_tokens() if by_policy else np.full(len(ids), ENVIRONMENT, np.int32))
        chain = tuple(self._chain)
        return Trajectory(
            task_id=self._task.id,
            sample=self._sample,
            token_ids=np.concatenate(self._context),
            action_mask=np.concatenate(action_mask),
            logprobs=np.concatenate(logprobs),
            versions=np.concatenate(versions),
            prompt_length=len(self._context[0]),
            turns=self.turns,
            tool_calls=tuple(self._tools),
            status=self._status,
            answer=chain[-1].text.strip() if self._status is Status.ANSWERED else "",
            text=render(chain) + self._unparsed,
            transitions_hold=self._profile.transitions_hold(chain),
            repairs=tuple(self._repairs),
        )


async def run_episode(
    task: Task,
    sample: int,
    *,
    codec: Codec,
    generate: Generate,
    use_tool: UseTool,
    agent: AgentConfig,
) -> Trajectory:
    """Plays one episode from its beginning to its end; an InfrastructureError from either callable propagates."""
    episode = Episode(task, sample, codec=codec, agent=agent)
    while episode.status is None:
        call = episode.take_turn(await generate(episode.ask()))
        if call is not None:
            episode.observe(episode.notice or await use_tool(call))
    return episode.trajectory()
