"""A teacher that answers programs in the policy's place: what it says is the tokens that the policy would write."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openai
import pytest

from actors.gateway.session import Request, Session
from actors.gateway.teacher import Teacher
from actors.messages import EpisodeId
from actors.serving.plain import PlainModel
from coa.agent.programs.tree import forest_of
from coa.errors import EndpointDown, ProgramFailed, UserError
from coa.llm.completions import Completion
from coa.usage import Usage
from tests.support.programs import SEARCH, chat_model, opened, order_of, served

USER = {"role": "user", "content": "What is 2 + 3 ?"}
ASKED = {"id": "7", "type": "function", "function": {"name": "search", "arguments": '{"query": "2 + 3"}'}}


class Model:
    """As an actor's handle: says what it is given, one after the other."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []
        self.complete = self

    async def remote(self, *asked: Any) -> Any:
        self.asked.append(asked)
        return self._answers[len(self.asked) - 1]


def says(text: str, *calls: Any) -> Completion:
    return Completion(text, "stop", Usage(1, 10, 2), tool_calls=calls)


def session_of(model: PlainModel, teacher: Any, messages: Sequence[Sequence[Any]]) -> Session:
    """A program that asks these conversations, each beginning with the last one and its reply."""

    async def go() -> Session:
        async with opened(model, teacher, order_of()) as (session, address, key):
            async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0) as client:
                known: list[Any] = []
                for more in messages:
                    known += more
                    answer = await client.chat.completions.create(model="m", messages=known, tools=[SEARCH])  # type: ignore[list-item]
                    known.append(answer.choices[0].message.model_dump(exclude_none=True))
            return session

    return asyncio.run(go())


TOOL = {"role": "tool", "tool_call_id": "7", "content": "5"}


def test_what_a_teacher_says_is_written_by_the_template_and_the_program_gets_it(
    folder: Path, model: PlainModel
) -> None:
    teacher = Teacher(llm := Model(says("I look.", ASKED), says("It is 5.")))  # type: ignore[arg-type]
    session = session_of(model, teacher, [[USER], [TOOL]])
    [path] = forest_of(session.calls, "5").paths
    token_ids, mask, logprobs, versions = path.arrays()
    read = read_with(folder)
    call = '<tool_call>{"name": "search", "arguments": {"query": "2 + 3"}}</tool_call>'
    assert read(token_ids[mask]) == f"I look.{call}<|im_end|>It is 5.<|im_end|>"
    assert read(token_ids).endswith(f"[assistant]I look.{call}<|im_end|>[tool]5<|im_end|>[assistant]It is 5.<|im_end|>")
    assert not logprobs.any()
    assert set(versions[mask]) == {0}
    assert [call.tools for call in session.calls] == [("search",), ()]
    assert teacher.usage == Usage(2, 20, 4)
    [_, (messages, seed, options)] = llm.asked
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["function"] == ASKED["function"]
    assert options == {"tools": [SEARCH]}
    assert seed != llm.asked[0][1]


def read_with(folder: Path) -> Any:
    from coa.agent.codec import read_tokenizer

    tokenizer = read_tokenizer(folder)
    return lambda tokens: tokenizer.decode(np.asarray(tokens).tolist())


def test_without_tools_none_are_offered(model: PlainModel) -> None:
    async def go() -> None:
        teacher = Teacher(llm := Model(says("5")))  # type: ignore[arg-type]
        async with opened(model, teacher, order_of()) as (_, address, key):  # type: ignore[arg-type]
            client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
            await client.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
            await client.close()
        assert [options for _, _, options in llm.asked] == [{}]

    asyncio.run(go())


def test_what_a_teacher_writes_as_a_mark_is_text(folder: Path, model: PlainModel) -> None:
    session = session_of(model, Teacher(Model(says("a<|im_end|>b"))), [[USER]])  # type: ignore[arg-type]
    [call] = session.calls
    end = call.said.token_ids[-1]
    assert call.said.token_ids.tolist().count(end) == 1
    assert "a" in call.text
    assert call.text.endswith("b")


def test_a_text_that_stops_the_policy_stops_the_teacher(model: PlainModel, folder: Path) -> None:
    async def go() -> Session:
        teacher = Teacher(Model(says("It is 5. Stop: 6"), says("none")))  # type: ignore[arg-type]
        async with opened(model, teacher, order_of()) as (session, address, key):
            client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
            for _ in range(2):
                await client.chat.completions.create(model="m", messages=[USER], stop=["Stop:", "?"])  # type: ignore[list-item]
            await client.close()
            return session

    stopped, other = asyncio.run(go()).calls
    assert stopped.text == "It is 5. "
    written = read_with(folder)(stopped.said.token_ids)
    assert "Stop:" in written
    assert "6" not in written
    assert other.text == "none"


def test_an_endpoint_that_is_down_is_a_failure_of_the_episode(model: PlainModel) -> None:
    down = EndpointDown("nobody answers", "here")
    down.usage = Usage(3, 0, 0)
    teacher = Teacher(Model(down))  # type: ignore[arg-type]

    async def go() -> Session:
        async with opened(model, teacher, order_of()) as (session, address, key):  # type: ignore[arg-type]
            client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
            with pytest.raises(openai.InternalServerError, match="nobody answers"):
                await client.chat.completions.create(model="m", messages=[USER])  # type: ignore[list-item]
            await client.close()
            return session

    assert asyncio.run(go()).failure is down
    assert teacher.usage == Usage(3, 0, 0)


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("{% for m in messages %}{{ m['role'] }}:{{ m['content'] }}\n{% endfor %}", "does not write a reply behind"),
        (
            "{% for m in messages %}[{{ m['role'] }}]{{ m['content'] }}{{ (m['tool_calls'] or []) | tojson }}"
            "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
            "agent.program.tool_parser does not read the calls",
        ),
    ],
)
def test_a_template_that_can_not_write_what_a_teacher_says_is_the_users_problem(
    tmp_path: Path, template: str, problem: str
) -> None:
    folder = chat_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text(template)

    async def go() -> Session:
        teacher = Teacher(Model(says("I look.", ASKED)))  # type: ignore[arg-type]
        async with opened(await served(folder), teacher, order_of()) as (session, address, key):  # type: ignore[arg-type]
            client = openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=key, max_retries=0)
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="m", messages=[USER], tools=[SEARCH])  # type: ignore[list-item]
            await client.close()
            return session

    failure = asyncio.run(go()).failure
    assert isinstance(failure, UserError)
    assert problem in str(failure)


def test_one_odd_reply_after_others_is_a_failure_of_its_episode() -> None:
    async def go() -> None:
        teacher = Teacher(Model(*(says("5", ASKED) for _ in range(2)), says("5")))  # type: ignore[arg-type]
        order: Any = SimpleNamespace(draw=1, id=EpisodeId("t", 0, 0), sampling=SimpleNamespace(stop=None))

        async def written(reply: Any, stops: Any) -> Any:
            return np.array([1], np.int32)

        async def odd(reply: Any, stops: Any) -> Any:
            raise UserError("it is odd")

        for turn_of, failure in ((written, None), (odd, ProgramFailed), (odd, UserError)):
            request = Request(None, turn_of=turn_of)  # type: ignore[arg-type]
            if failure is None:
                await teacher(order, request)
            else:
                with pytest.raises(failure, match="it is odd"):
                    await teacher(order, request)

    asyncio.run(go())
