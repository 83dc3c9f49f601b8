"""Random programs at the gateway: whatever they do with their conversations, each sampled token is trained once, as it
was sampled, or for a reason not at all."""

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from actors.gateway.session import Session
from actors.serving.plain import PlainModel
from coa.agent.programs.tree import Forest, forest_of
from coa.types import ENVIRONMENT
from tests.support.programs import SEARCH, Scripted, opened, order_of

ROUNDS = 12
AT_ONCE = 3
REPLIES = (
    "<hm>one</hm>It is 1.",
    "It is 2.",
    '<hm>hm</hm><tool_call>{"arguments": {"query":"x"}, "name":"search"}</tool_call>',
)
Messages = list[dict[str, Any]]


def user(dice: random.Random) -> dict[str, Any]:
    return {"role": "user", "content": f"What is {dice.randrange(4)} ?"}


def next_of(dice: random.Random, known: list[Messages]) -> Messages:
    """What a program asks next: something new, or a conversation that it continues, repeats, forks, shortens or
    edits."""
    if not known or dice.random() < 0.15:
        return [user(dice)]
    messages = [*dice.choice(known)]
    match dice.randrange(6):
        case 0:
            return messages[:-1]  # once more
        case 1 if len(messages) > 2:
            return [messages[0], {"role": "user", "content": "In short: so far nothing."}, user(dice)]
        case 2 if len(messages) > 2:
            place = dice.randrange(1, len(messages), 2)
            edited = {"role": "assistant", "content": "It was 7."}
            return [*messages[:place], edited, *messages[place + 1 :], user(dice)]
        case _:
            calls = messages[-1].get("tool_calls") or []
            told = [{"role": "tool", "tool_call_id": call["id"], "content": "found"} for call in calls]
            return [*messages, *(told or [user(dice)])]


async def play(session: Session, address: str, key: str, dice: random.Random) -> None:
    known: list[Messages] = []
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:

        async def ask(messages: Messages, *, streamed: bool, cut_off: bool) -> None:
            body = {"model": "m", "messages": messages, "tools": [SEARCH], "stream": streamed}
            async with http.post(f"{address}/v1/chat/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                if cut_off:
                    return
                if streamed:
                    await answer.read()
                    return
                message = (await answer.json())["choices"][0]["message"]
            reply = {name: message[name] for name in ("role", "content", "tool_calls") if message.get(name)}
            known.append([*messages, reply])

        for _ in range(ROUNDS):
            asked = [next_of(dice, known) for _ in range(dice.randint(1, AT_ONCE))]
            streams = [dice.random() < 0.2 for _ in asked]
            cut = [dice.random() < 0.2 for _ in asked]
            await asyncio.gather(
                *(ask(one, streamed=s, cut_off=c and s) for one, s, c in zip(asked, streams, cut, strict=True))
            )


def check(session: Session, policy: Scripted, forest: Forest) -> None:
    sampled = {id(said) for said in policy.said}
    assert {id(call.said) for call in session.calls} <= sampled
    for call in session.calls:
        assert policy.orders[call.number - 1].prompt.tolist() == call.prompt.tolist()
    trained = Counter(number for path in forest.paths for number in path.trained)
    assert set(trained.values()) == {1}
    assert sorted([*trained, *forest.unused]) == sorted(call.number for call in session.calls)
    for path in forest.paths:
        token_ids, mask, logprobs, versions = path.arrays()
        expected = np.zeros(len(token_ids), np.bool_)
        for call in path.calls:
            assert token_ids[: len(call.whole)].tolist() == call.whole.tolist(), "each call continues those before it"
            here = slice(len(call.prompt), len(call.whole))
            if call.number in path.trained:
                expected[here] = True
                assert logprobs[here].tolist() == call.said.logprobs.tolist()
                assert versions[here].tolist() == call.said.version_of_tokens().tolist()
        assert mask.tolist() == expected.tolist()
        assert (versions[~mask] == ENVIRONMENT).all()


def test_each_token_is_trained_once_as_it_was_sampled(folder: Path, model: PlainModel) -> None:
    async def go() -> tuple[int, int]:
        continued = calls = 0
        for seed in range(8):
            policy = Scripted(folder, *REPLIES)
            order = order_of(max_turns=1000)
            async with opened(model, policy, order) as (session, address, key):
                await play(session, address, key, random.Random(seed))
            forest = forest_of(session.calls, "", auxiliary=bool(seed % 2))
            check(session, policy, forest)
            calls += len(session.calls)
            continued += sum(len(path.calls) - 1 for path in forest.paths)
        return calls, continued

    calls, continued = asyncio.run(go())
    assert calls > 100
    assert continued > calls / 4, "most of what goes on is recognized"
