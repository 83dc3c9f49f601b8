"""The agent loop: the policy speaks until a stop, a tool answers, and so on, in one stream of tokens.

    generate(tokens so far) -> Completion -> parse -> tool call -> observation tokens -> generate ...

It knows two callables and nothing else, so it is the same loop for RL, evaluation and tests.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coa.codec import Codec
from coa.grammar import ANSWER, TAGS, Kind, Parsed, Profile, Span, parse, render
from coa.profiles import profile as find_profile
from coa.tools.base import ToolCall
from coa.types import ENVIRONMENT, Floats, Mask, Status, Task, Tokens, Trajectory


@dataclass(frozen=True)
class Limits:
    """Budgets of one episode, in tokens and turns."""

    max_turns: int = 8
    max_turn_tokens: int = 4096
    max_observation_tokens: int = 4096
    max_tokens: int = 32768
    """Prompt, policy and observations together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What the policy said in one turn. `ended` is False where it ran out of tokens."""

    token_ids: Tokens
    logprobs: Floats
    versions: Tokens
    """Version of the weights that sampled each token."""
    ended: bool


class Generate(Protocol):
    def __call__(self, prompt: Tokens, *, turn: int, max_tokens: int) -> Awaitable[Completion]: ...


class UseTool(Protocol):
    def __call__(self, call: ToolCall) -> Awaitable[str]: ...


class Tape:
    """The tokens of an episode so far, and who made each."""

    def __init__(self, prompt: Tokens) -> None:
        self.token_ids: list[Tokens] = [prompt]
        self.by_policy: list[Mask] = [np.zeros(len(prompt), np.bool_)]
        self.logprobs: list[Floats] = [np.zeros(len(prompt), np.float32)]
        self.versions: list[Tokens] = [np.full(len(prompt), ENVIRONMENT, np.int32)]
        self.length = len(prompt)

    def policy(self, completion: Completion) -> None:
        self._append(completion.token_ids, True, completion.logprobs, completion.versions)

    def environment(self, token_ids: list[int]) -> None:
        n = len(token_ids)
        self._append(np.array(token_ids, np.int32), False, np.zeros(n, np.float32), np.full(n, ENVIRONMENT, np.int32))

    def _append(self, token_ids: Tokens, by_policy: bool, logprobs: Floats, versions: Tokens) -> None:
        self.token_ids.append(token_ids)
        self.by_policy.append(np.full(len(token_ids), by_policy))
        self.logprobs.append(logprobs)
        self.versions.append(versions)
        self.length += len(token_ids)

    def tokens(self) -> Tokens:
        return np.concatenate(self.token_ids)


def well_formed_turn(parsed: Parsed, profile: Profile) -> bool:
    """Whether a finished turn is tag text of the profile that ends in its only tool call or in the answer."""
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


async def run_episode(
    task: Task,
    sample: int,
    *,
    codec: Codec,
    generate: Generate,
    use_tool: UseTool,
    limits: Limits,
    instructed: bool,
) -> Trajectory:
    """Plays one episode. Bad turns end it with a status; InfrastructureError from either callable propagates."""
    profile = find_profile(task.profile)
    prompt = codec.prompt(profile, task.question, instructed=instructed)
    tape = Tape(prompt)
    chain: list[Span] = []
    unparsed = ""
    tools: list[str] = []
    status, turn = Status.OUT_OF_TURNS, 0
    while turn < limits.max_turns:
        room = min(limits.max_turn_tokens, limits.max_tokens - tape.length)
        if room <= 0:
            status = Status.TRUNCATED
            break
        completion = await generate(tape.tokens(), turn=turn, max_tokens=room)
        turn += 1
        tape.policy(completion)
        said = codec.decode(completion.token_ids)
        parsed = parse(said)
        if not completion.ended or not well_formed_turn(parsed, profile):
            status = Status.MALFORMED if completion.ended else Status.TRUNCATED
            unparsed = said
            break
        chain.extend(parsed.chain)
        last = chain[-1]
        if last.tag == ANSWER:
            status = Status.ANSWERED
            break
        tools.append(last.tag)
        text = await use_tool(ToolCall(last.tag, last.text.strip()))
        observed = codec.observation(text, limit=limits.max_observation_tokens)
        # Where there is room for a part of it only, no turn follows.
        tape.environment(observed[: limits.max_tokens - tape.length])
        chain.extend(parse(codec.decode(observed)).chain)
    return Trajectory(
        task_id=task.id,
        sample=sample,
        token_ids=tape.tokens(),
        by_policy=np.concatenate(tape.by_policy),
        logprobs=np.concatenate(tape.logprobs),
        versions=np.concatenate(tape.versions),
        prompt_length=len(prompt),
        turns=turn,
        tool_calls=tuple(tools),
        status=status,
        answer=chain[-1].text.strip() if status is Status.ANSWERED else "",
        text=render(chain) + unparsed,
        transitions_hold=profile.transitions_hold(tuple(chain)),
    )
