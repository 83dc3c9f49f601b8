"""Episodes that are played for clients, on a scripted policy."""

import asyncio
from dataclasses import replace
from typing import Any

from actors.serving.agent import ServedAgent
from coa.agent.episode import Ask
from coa.agent.journal import Said
from coa.serving.chain import Text
from coa.serving.events import Broke, Event, Finished, Returned
from coa.serving.requests import AgentRequest
from coa.tools.client import ToolCaller
from tests.support.agent_server import Asking, make_server
from tests.support.executors import Answering
from tests.support.fakes import tag_codec
from tests.support.policies import AGENT, AT_ONCE
from tests.support.runners import SEARCHES, Saying, echo


class FailingOnce(Saying):
    """A policy with a defect, which its first turn meets."""

    async def generate(self, ask: Ask, **how: Any) -> Said:
        if not self.seeds:
            self.seeds.append(0)
            raise KeyError("a bug")
        return await super().generate(ask, **how)


def request_of(question: str, *, streamed: bool = True) -> AgentRequest:
    return AgentRequest(
        question=question,
        profile="mhqa",
        temperature=0.0,
        top_p=1.0,
        seed=None,
        choices=1,
        samples=1,
        select="majority",
        streamed=streamed,
        agent=AGENT,
    )


async def course(agent: ServedAgent, question: str, *, streamed: bool = True) -> list[Event]:
    return [event async for event in agent.play(request_of(question, streamed=streamed))]


def told(events: list[Event]) -> list[Event]:
    """With texts that came in pieces put together, and without what is another time in each run."""
    joined: list[Event] = []
    for event in events:
        if isinstance(event, Text) and joined and isinstance(last := joined[-1], Text):
            joined[-1] = Text(last.text + event.text)
        else:
            event = replace(event, seconds=0.0) if isinstance(event, Returned) else event
            joined.append(replace(event, at=0) if isinstance(event, Finished) else event)
    return joined


def test_a_client_that_waits_for_the_whole_is_told_what_a_stream_says() -> None:
    async def go() -> None:
        agent = ServedAgent(Saying(*SEARCHES), ToolCaller(Answering(echo), "server"), codec=tag_codec(), retry=AT_ONCE)
        streamed, whole = [await course(agent, "Who ?", streamed=streamed) for streamed in (True, False)]
        assert told(whole) == told(streamed)
        tokens = [
            sample.value
            for family in agent.metrics._own.collect()
            for sample in family.samples
            if sample.name == "coa_policy_tokens_total"
        ]
        assert isinstance(end := whole[-1], Finished)
        assert tokens == [2 * end.usage.output_tokens]

    asyncio.run(go())


def test_a_defect_fails_the_episode_that_meets_it_and_no_other() -> None:
    async def go() -> None:
        agent = ServedAgent(
            FailingOnce(*SEARCHES), ToolCaller(Answering(echo), "server"), codec=tag_codec(), retry=AT_ONCE
        )
        broken, whole = await asyncio.gather(course(agent, "first ?"), course(agent, "second ?"))
        assert broken == [Broke(code="server_error", message="the server failed at this episode")]
        assert isinstance(whole[-1], Finished)
        agent.check()
        assert isinstance((await course(agent, "third ?"))[-1], Finished)

    asyncio.run(go())


def test_a_client_is_not_told_what_the_defect_was() -> None:
    asking = Asking(make_server(FailingOnce(*SEARCHES)))
    body = {"model": "afm", "messages": [{"role": "user", "content": "Who ?"}]}
    answer = asking.post("/v1/chat/completions", body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "server_error")
    assert "bug" not in answer.text
    assert asking.post("/v1/chat/completions", body).status_code == 200
