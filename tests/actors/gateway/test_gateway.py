"""Programs at the gateway, with the clients that they use and vLLM's own handlers, on a scripted policy: what is
recorded is what was sampled, and what comes back is what was recorded."""

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import numpy as np
import openai
import pytest

from actors.gateway.session import Session
from actors.messages import EpisodeOrder
from actors.serving.plain import PlainModel
from coa.agent.programs.tree import forest_of
from coa.errors import EngineDied
from tests.support.programs import CALL, SEARCH, Scripted, opened, order_of

USER = {"role": "user", "content": "What is 2 + 3 ?"}
Use = Callable[[Session, str, str], Coroutine[Any, Any, None]]


class Bench:
    """Uses of one session of a gateway whose policy says `texts`."""

    def __init__(self, folder: Path, model: PlainModel) -> None:
        self._folder, self._model = folder, model
        self.policy = Scripted(folder)

    def use(self, use: Use, *texts: str, order: EpisodeOrder | None = None) -> Session:
        self.policy = Scripted(self._folder, *texts)

        async def go() -> Session:
            async with opened(self._model, self.policy, order or order_of()) as (session, address, key):
                await use(session, address, key)
                return session

        return asyncio.run(go())


@pytest.fixture
def bench(folder: Path, model: PlainModel) -> Bench:
    return Bench(folder, model)


def client(address: str, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)


def assert_each_continues_the_one_before(session: Session) -> None:
    for before, call in zip(session.calls, session.calls[1:], strict=False):
        assert call.prompt[: len(before.whole)].tolist() == before.whole.tolist()
        assert len(call.prompt) > len(before.whole)


# --- what is recorded -------------------------------------------------------------------------------------------------


def test_a_reply_that_comes_back_is_the_tokens_that_were_sampled(bench: Bench) -> None:
    """The template drops the thought, and the tokenizer writes the rest with fewer tokens."""

    async def use(session: Session, address: str, key: str) -> None:
        messages: list[Any] = [USER]
        for number in range(3):
            answer = await client(address, key).chat.completions.create(model="gpt-5", messages=messages)
            assert answer.choices[0].message.content == f"<hm>thought {number}</hm>It is {number}."
            messages += [answer.choices[0].message.model_dump(), {"role": "user", "content": f"And {number} ?"}]

    session = bench.use(use, *(f"<hm>thought {number}</hm>It is {number}." for number in range(3)))
    assert [call.said for call in session.calls] == bench.policy.said
    assert_each_continues_the_one_before(session)
    last = session.calls[-1]
    read = bench.policy.read(last.prompt)
    assert read.endswith("And 1 ?<|im_end|>[assistant]")
    assert read.count("thought") == 2
    end = int(last.said.token_ids[-1])
    assert last.prompt.tolist().count(end) == 5, "the policy ends its replies, and the template the others"
    token_ids = bench.policy.said[0].token_ids
    assert len(token_ids) > len(bench.policy._tokenizer.encode(session.calls[0].text)), "no tokenizer writes it so"


def test_calls_of_tools_come_back_as_they_were_sampled(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        ask = client(address, key).chat.completions.create
        first = await ask(model="gpt-5", messages=[USER], tools=[SEARCH])  # type: ignore[list-item]
        [call] = first.choices[0].message.tool_calls or []
        assert (call.function.name, call.function.arguments) == ("search", '{"query": "x"}')  # type: ignore[union-attr]
        told = {"role": "tool", "tool_call_id": call.id, "content": "five"}
        messages: list[Any] = [USER, first.choices[0].message.model_dump(exclude_none=True), told]
        second = await ask(model="gpt-5", messages=messages, tools=[SEARCH])  # type: ignore[list-item]
        assert second.choices[0].message.content == "5"

    session = bench.use(use, CALL, "5")
    assert [call.tools for call in session.calls] == [("search",), ()]
    assert_each_continues_the_one_before(session)
    assert bench.policy.read(session.calls[1].prompt).endswith("[tool]five<|im_end|>[assistant]")


def test_a_stream_is_recorded_as_any_other_answer(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        ask = client(address, key).chat.completions.create
        said = ""
        async for chunk in await ask(model="gpt-5", messages=[USER], stream=True):  # type: ignore[list-item, union-attr]
            said += chunk.choices[0].delta.content or ""
        assert said == "<hm>a</hm>It is 5."
        again: list[Any] = [USER, {"role": "assistant", "content": said}, USER]
        await ask(model="gpt-5", messages=again)

    assert_each_continues_the_one_before(bench.use(use, "<hm>a</hm>It is 5."))


def test_the_messages_protocol(bench: Bench) -> None:
    tool = {"name": "search", "input_schema": SEARCH["function"]["parameters"]}

    async def use(session: Session, address: str, key: str) -> None:
        ask = anthropic.AsyncAnthropic(base_url=address, api_key=key, max_retries=0).messages.create
        messages: list[Any] = [USER]
        first = await ask(model="claude", max_tokens=200, messages=messages, tools=[tool])  # type: ignore[list-item]
        [called] = [part for part in first.content if part.type == "tool_use"]
        assert (called.name, called.input) == ("search", {"query": "x"})
        result = {"type": "tool_result", "tool_use_id": called.id, "content": "five"}
        messages += [
            {"role": "assistant", "content": [part.model_dump() for part in first.content]},
            {"role": "user", "content": [result]},
        ]
        second = await ask(model="claude", max_tokens=200, messages=messages, tools=[tool])  # type: ignore[list-item]
        assert second.content[0].text == "5"  # type: ignore[union-attr]

    session = bench.use(use, CALL, "5")
    assert_each_continues_the_one_before(session)


def test_the_responses_protocol(bench: Bench) -> None:
    tool: Any = {"type": "function", "name": "search", "parameters": SEARCH["function"]["parameters"]}

    async def use(session: Session, address: str, key: str) -> None:
        ask = client(address, key).responses.create
        items: list[Any] = [USER]
        first = await ask(model="gpt-5", input=items, tools=[tool])
        [called] = [item for item in first.output if item.type == "function_call"]
        assert (called.name, called.arguments) == ("search", '{"query": "x"}')
        items += [item.model_dump(exclude_none=True) for item in first.output]
        items.append({"type": "function_call_output", "call_id": called.call_id, "output": "five"})
        second = await ask(model="gpt-5", input=items, tools=[tool])
        assert second.output_text == "5"

    session = bench.use(use, CALL, "5")
    assert_each_continues_the_one_before(session)


def test_what_the_program_has_changed_is_rendered_anew(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        ask = client(address, key).chat.completions.create
        await ask(model="gpt-5", messages=[USER])  # type: ignore[list-item]
        other: list[Any] = [USER, {"role": "assistant", "content": "It was 6."}, USER]
        await ask(model="gpt-5", messages=other)

    first, second = bench.use(use, "It is 5.").calls
    read = bench.policy.read(second.prompt)
    assert read.count("It was 6.") == 1
    assert not read.startswith(bench.policy.read(first.whole))


def test_log_probs_and_versions_are_those_of_the_sampled_tokens(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        await client(address, key).chat.completions.create(model="gpt-5", messages=[USER])  # type: ignore[list-item]

    [call] = bench.use(use, "It is 5.").calls
    [said] = bench.policy.said
    assert call.said is said
    assert np.array_equal(call.whole[len(call.prompt) :], said.token_ids)


# --- what is asked of the policy --------------------------------------------------------------------------------------


def test_the_run_decides_how_is_sampled_and_the_request_where_it_stops(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        answer = await client(address, key).chat.completions.create(
            model="gpt-5",
            messages=[USER],  # type: ignore[list-item]
            temperature=0.0,
            presence_penalty=1.5,
            max_tokens=50,
            stop=["is"],
        )
        assert answer.choices[0].message.content == "It "

    session = bench.use(use, "It is 5.")
    [order] = bench.policy.orders
    asked = order.sampling
    assert (asked.temperature, asked.top_p, asked.presence_penalty) == (0.9, 0.8, 0.0)
    assert (asked.max_tokens, asked.stop) == (50, ["is"])
    assert session.calls[0].free


def test_a_response_that_a_schema_shaped_is_not_trained(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        ask = client(address, key).chat.completions.create
        schema = {"name": "n", "schema": {"type": "object"}}
        shaped: Any = {"response_format": {"type": "json_schema", "json_schema": schema}}
        for how in (shaped, {"logit_bias": {"5": 2}}, {"extra_body": {"min_tokens": 2}}, {}):
            await ask(model="gpt-5", messages=[USER], **how)  # type: ignore[list-item]

    session = bench.use(use, "{}")
    assert [call.free for call in session.calls] == [False, False, False, True]


STRICT = {**SEARCH, "function": {**SEARCH["function"], "strict": True}}
OF_RESPONSES = {"type": "function", **SEARCH["function"]}
OF_MESSAGES = {"name": "search", "input_schema": SEARCH["function"]["parameters"]}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", {"tools": [STRICT]}),
        ("chat/completions", {"tools": [SEARCH], "tool_choice": "required"}),
        ("responses", {"input": "Sum ?", "tools": [OF_RESPONSES], "tool_choice": "required"}),
        ("messages", {"tools": [OF_MESSAGES], "tool_choice": {"type": "any"}, "max_tokens": 99}),
    ],
)
def test_tools_shape_nothing(bench: Bench, path: str, body: dict[str, Any]) -> None:
    """Neither strict ones nor that one of them has to be called."""

    async def use(session: Session, address: str, key: str) -> None:
        messages = {} if path == "responses" else {"messages": [USER]}
        whole, headers = {"model": "m", **messages, **body}, {"Authorization": f"Bearer {key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as http,
            http.post(f"{address}/v1/{path}", json=whole) as answer,
        ):
            assert answer.status == 200, await answer.text()
            assert "search" in await answer.text()

    [call] = bench.use(use, CALL).calls
    assert (call.free, call.tools) == (True, ("search",))


def test_a_call_of_a_named_tool_is_forced_and_not_trained(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        named: Any = {"tools": [SEARCH], "tool_choice": {"type": "function", "function": {"name": "search"}}}
        await client(address, key).chat.completions.create(model="gpt-5", messages=[USER], **named)  # type: ignore[list-item]

    assert [(call.free, call.tools) for call in bench.use(use, CALL).calls] == [(False, ("search",))]


def test_what_a_sub_agent_said_came_up_again_whatever_the_template_shows_of_it(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        ask = client(address, key).chat.completions.create
        said = (await ask(model="m", messages=[USER])).choices[0].message.content  # type: ignore[list-item]
        call: Any = {"id": "1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
        told: list[Any] = [
            {"role": "user", "content": "Go on"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": f"<hm>It said {said}</hm>"},
        ]
        await ask(model="m", messages=told)

    assert forest_of(bench.use(use, "Yes", "No").calls, "No").unused == {}


def test_equal_prompts_are_drawn_differently_and_whoever_asks_first_gets_the_same(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        other = {"role": "user", "content": "Else ?"}
        for message in (USER, USER, other):
            await client(address, key).chat.completions.create(model="gpt-5", messages=[message])  # type: ignore[list-item]

    async def reverse(session: Session, address: str, key: str) -> None:
        other = {"role": "user", "content": "Else ?"}
        for message in (other, USER, USER):
            await client(address, key).chat.completions.create(model="gpt-5", messages=[message])  # type: ignore[list-item]

    bench.use(use, "a")
    draws = [order.draw for order in bench.policy.orders]
    assert len(set(draws)) == 3
    bench.use(reverse, "a")
    assert [order.draw for order in bench.policy.orders] == [draws[2], draws[0], draws[1]]


def test_a_used_up_budget_answers_with_a_plain_stop_that_is_not_recorded(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        ask = client(address, key).chat.completions.create
        for number in range(3):
            answer = await ask(model="gpt-5", messages=[USER])  # type: ignore[list-item]
            assert (answer.choices[0].message.content or "", answer.choices[0].finish_reason) == (
                "ab" if number < 2 else "",
                "stop",
            )

    session = bench.use(use, "ab", order=order_of(max_turns=2))
    assert (len(session.calls), session.exhausted) == (2, True)


def test_a_turn_has_the_room_that_the_episode_leaves(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        await client(address, key).chat.completions.create(model="gpt-5", messages=[USER])  # type: ignore[list-item]

    session = bench.use(use, "ab", order=order_of(max_tokens=60))
    [order] = bench.policy.orders
    assert order.sampling.max_tokens == 60 - len(order.prompt) < 400
    assert not session.exhausted


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_a_key_is_that_of_an_episode_under_way(bench: Bench) -> None:
    kept: list[str] = []

    async def use(session: Session, address: str, key: str) -> None:
        kept.append(key)
        with pytest.raises(openai.AuthenticationError, match="no episode under way"):
            await client(address, "sk-other").chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
        with pytest.raises(anthropic.AuthenticationError, match="no episode under way"):
            await anthropic.AsyncAnthropic(base_url=address, api_key="other", max_retries=0).messages.create(
                model="claude",
                max_tokens=5,
                messages=[USER],  # type: ignore[list-item]
            )
        below = openai.AsyncOpenAI(base_url=f"{address}/session/{key}/v1", api_key="none", max_retries=0)
        await below.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
        assert [one.id for one in (await below.models.list()).data] == ["policy"]

    assert len(bench.use(use, "a").calls) == 1

    async def later(session: Session, address: str, key: str) -> None:
        with pytest.raises(openai.AuthenticationError):
            await client(address, kept[0]).chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]

    bench.use(later, "a")


def test_what_the_gateway_does_not_give_is_refused(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        ask = client(address, key).chat.completions.create
        refused: tuple[Any, ...] = ({"n": 2}, {"logprobs": True}, {"messages": []}, {"messages": "x"})
        for how in refused:
            with pytest.raises(openai.BadRequestError):
                await ask(**{"model": "m", "messages": [USER], **how})
        with pytest.raises(openai.NotFoundError, match="known are chat/completions"):
            await client(address, key).embeddings.create(model="m", input="x")
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
            for body in ("no json", "[]"):
                async with http.post(f"{address}/v1/chat/completions", data=body) as answer:
                    assert answer.status == 400

    session = bench.use(use, "a")
    assert (session.calls, bench.policy.orders) == ([], [])


def test_a_failure_of_the_engines_is_the_episodes(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        async def fails(order: Any, request: Any) -> Any:
            raise EngineDied("its core is gone")

        session.take_turn = fails
        with pytest.raises(openai.InternalServerError, match="its core is gone"):
            await client(address, key).chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]

    session = bench.use(use, "a")
    assert isinstance(session.failure, EngineDied)


def test_a_program_that_hangs_up_ends_its_call(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        bench.policy.waits = asyncio.Event()
        asking = asyncio.ensure_future(
            client(address, key).chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
        )
        await asyncio.wait({asking, asyncio.ensure_future(bench.policy.asked.wait())}, return_when=FIRST_COMPLETED)
        assert not asking.done()
        asking.cancel()
        await bench.policy.cancelled.wait()

    assert bench.use(use, "a").calls == []


def test_a_session_that_ends_ends_its_calls(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        bench.policy.waits = asyncio.Event()
        asking = asyncio.ensure_future(
            client(address, key).chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
        )
        await asyncio.wait({asking, asyncio.ensure_future(bench.policy.asked.wait())}, return_when=FIRST_COMPLETED)
        assert not asking.done()
        session.close()
        with pytest.raises(openai.APIError):
            await asking

    assert bench.use(use, "a").calls == []
    assert bench.policy.cancelled.is_set()


def test_a_program_may_give_itself_a_reward(bench: Bench) -> None:
    async def use(session: Session, address: str, key: str) -> None:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:
            for reward, status in ((0.25, 200), ("1", 400), (None, 400), (True, 400)):
                async with http.post(f"{address}/session/reward", json={"reward": reward}) as answer:
                    assert answer.status == status
            async with http.post(f"{address}/session/reward", data='{"reward": NaN}') as answer:
                assert answer.status == 400

    assert bench.use(use, "a").reward == 0.25
