"""A question in the terminal, on a scripted policy."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from actors.serving.agent import ServedAgent
from coa.agent.grammar import Chain, Span
from coa.errors import InfrastructureError, ToolDown
from coa.serving.events import Finished, ServedUsage
from coa.tools.base import ToolCall
from coa.tools.client import ToolCaller
from coa.types import Status
from jobs.commands.ask.episode import lines_of, request_of, tell
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from tests.support.executors import Answering
from tests.support.fakes import tag_codec
from tests.support.policies import AGENT, AT_ONCE
from tests.support.runners import SEARCHES, Saying, echo


def said(*turns: Chain, answer: Callable[[ToolCall], Awaitable[str | ToolDown]] = echo) -> list[str]:
    """What the terminal shows of an episode."""
    out = io.StringIO()

    async def go() -> None:
        caller = ToolCaller(Answering(answer), "ask")
        agent = ServedAgent(Saying(*turns), caller, codec=tag_codec(), retry=AT_ONCE)
        await tell(agent, request_of(replace(Recipe(), agent=AGENT), "Who ?", "mhqa"), Console(out, out))

    asyncio.run(go())
    return out.getvalue().splitlines()


def test_an_episode_is_shown_tag_by_tag_with_what_it_cost() -> None:
    plan, search, returned, answer, empty, cost = said(*SEARCHES)
    assert (plan, search, answer, empty) == ("<plan> p", "<wiki_search> x", "<answer> 1", "")
    assert returned.startswith("  wiki_search: x! (0.")
    assert cost.startswith("11 tokens sampled, 27 read, 1 tool call, 2 turns, ")


def test_an_episode_without_an_answer_says_why() -> None:
    finished = Finished(status=Status.OUT_OF_TURNS, answer="", usage=ServedUsage(turns=3), limit="max_turns")
    why, cost = lines_of(finished, 1.25)
    assert why == "no answer: out_of_turns, over the limit max_turns"
    assert cost == "\n0 tokens sampled, 0 read, 0 tool calls, 3 turns, 1.2 s"


def test_a_tool_that_is_down_ends_it_with_a_failure() -> None:
    async def down(call: ToolCall) -> ToolDown:
        return ToolDown("the search is down")

    with pytest.raises(InfrastructureError, match="the search is down"):
        said((Span("plan", "p"), Span("wiki_search", "x")), answer=down)
