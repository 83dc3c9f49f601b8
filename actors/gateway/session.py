"""A program's episode at the gateway: its budget, and what the policy sampled for it."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from actors.messages import EpisodeId, EpisodeOrder, TurnOrder
from actors.rollout.sampling import changed
from coa.agent.journal import Said
from coa.agent.programs.conversation import Conversation, Conversations
from coa.agent.programs.tree import Call
from coa.errors import InfrastructureError, UserError
from coa.json_object import Json, JsonView
from coa.types import Tokens

if TYPE_CHECKING:
    import vllm

TakeTurn = Callable[[TurnOrder, "Request"], Awaitable[Said]]
"""Samples a turn, or has it from a teacher; raises InfrastructureError."""


@dataclass(slots=True)
class Request:
    """A request of a program, from its route to the engine."""

    session: "Session"
    messages: Sequence[Json] = ()
    """As chat completions have them."""
    tools: Sequence[Json] = ()
    conversation: Conversation | None = None
    """None until its messages were read."""
    reply_of: Callable[[Said, str], JsonView] = lambda said, text: {"role": "assistant", "content": text}
    """The message that the program gets for a turn and its text."""
    turn_of: Callable[[Json, Sequence[str]], Awaitable[Tokens]] | None = None
    """The tokens with which the policy would have said a message, up to the first of the texts that stop it; raises
    UserError if its chat template can't tell."""


class OutOfBudget(Exception):
    """The episode has no turn left, or no room for one."""


@dataclass(eq=False)
class Session:
    """The calls of one episode."""

    order: EpisodeOrder
    take_turn: TakeTurn
    calls: list[Call] = field(default_factory=list)
    reward: float | None = None
    """The reward that the program gave itself."""
    failure: InfrastructureError | UserError | None = None
    """The first failure of a call, for which the program is not to blame."""
    exhausted: bool = False
    """Whether a call got no turn, since the episode's budget was used up."""
    closed: bool = False
    conversations: Conversations = field(default_factory=Conversations)
    _clock: "itertools.count[int]" = field(default_factory=itertools.count)
    _numbers: "itertools.count[int]" = field(default_factory=lambda: itertools.count(1))
    _alike: Counter[int] = field(default_factory=Counter[int])
    """How often each prompt was asked."""
    _under_way: "set[asyncio.Future[Said]]" = field(default_factory=set["asyncio.Future[Said]"])

    async def ask(
        self, request: Request, prompt: Tokens, asked: "vllm.SamplingParams", decode: Callable[[list[int]], str]
    ) -> tuple[Said, str]:
        """Samples the turn of a request, and records it. Returns it with its text. Raises OutOfBudget, and
        InfrastructureError if it can't be sampled, which ends the episode."""
        number, at = next(self._numbers), next(self._clock)
        limits = self.order.agent.limits
        room = min(limits.max_turn_tokens, limits.max_tokens - len(prompt))
        if self.closed or number > limits.max_turns or room <= 0:
            self.exhausted = True
            raise OutOfBudget
        digest = xxhash.xxh3_64_intdigest(prompt.tobytes())
        self._alike[digest] += 1
        turn = TurnOrder(
            id=_id(self.order.id, number),
            prompt=prompt,
            sampling=sampling_of(asked, self.order, room),
            draw=digest + self._alike[digest],
            salt=self.order.salt,
        )
        said = await self._sampled(turn, request)
        text = text_of(said, asked, decode)
        reply = request.reply_of(said, text)
        call = Call(
            number=number,
            asked=at,
            answered=next(self._clock),
            prompt=prompt,
            said=said,
            text=text,
            messages=request.conversation.messages if request.conversation else (),
            tools=tools_of(reply),
            free=is_free(asked),
        )
        self.calls.append(call)
        if request.conversation is not None:
            self.conversations.add(request.conversation, reply, call)
        return said, text

    async def _sampled(self, turn: TurnOrder, request: Request) -> Said:
        asking = asyncio.ensure_future(self.take_turn(turn, request))
        self._under_way.add(asking)
        try:
            return await asking
        except (InfrastructureError, UserError) as error:
            self.failure = self.failure or error
            raise
        finally:
            asking.cancel()
            self._under_way.discard(asking)

    def close(self) -> None:
        """Ends the calls that are under way; later ones get no answer."""
        self.closed = True
        for asking in self._under_way:
            asking.cancel()


def _id(episode: EpisodeId, call: int) -> EpisodeId:
    return EpisodeId(episode.task, episode.group, episode.sample, episode.serial, call)


def sampling_of(asked: "vllm.SamplingParams", order: EpisodeOrder, room: int) -> "vllm.SamplingParams":
    """What the policy is asked: the sampling of the run, with the stops and the constraints of the request. A program's
    temperature is made for another model; at 0, a group would have no spread."""
    return changed(
        asked,
        temperature=order.sampling.temperature,
        top_p=order.sampling.top_p,
        top_k=order.sampling.top_k,
        min_p=0.0,
        presence_penalty=0.0,
        frequency_penalty=0.0,
        repetition_penalty=1.0,
        max_tokens=min(room, asked.max_tokens or room),
    )


def is_free(asked: "vllm.SamplingParams") -> bool:
    """Whether nothing but the policy decides which tokens are sampled."""
    constraints = (asked.structured_outputs, asked.logit_bias, asked.allowed_token_ids, asked.bad_words)
    forced = asked.min_tokens or asked.ignore_eos or asked.thinking_token_budget is not None
    return not any(constraints) and not forced


def text_of(said: Said, asked: "vllm.SamplingParams", decode: Callable[[list[int]], str]) -> str:
    """The text of a turn, without the text or the token that stopped it."""
    ids = said.token_ids.tolist()
    text = decode(ids)
    if not said.ended:
        return text
    stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
    ends = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else decode(ids[:-1])


def tools_of(reply: JsonView) -> tuple[str, ...]:
    """Names of the tools that a message calls."""
    return tuple(call["function"]["name"] for call in reply.get("tool_calls") or ())


def as_tokens(ids: list[int]) -> Tokens:
    return np.asarray(ids, np.int32)
