"""What tests of the episode runner share."""

from typing import Any

from actors.messages import Advanced
from coa.agent.episode import Ask
from coa.agent.grammar import Chain, Span
from coa.agent.journal import Journal
from coa.tools.base import ToolCall
from coa.types import Scored, Trajectory
from tests.support.policies import Runner, SeededPolicy

PLAN, SEARCH, ANSWER = Span("plan", "p"), Span("wiki_search", "x"), Span("answer", "1")


class Saying(SeededPolicy):
    """The same turns in every episode."""

    def __init__(self, *turns: Chain) -> None:
        super().__init__()
        self.turns = turns

    def turn(self, ask: Ask, seed: int) -> Chain:
        return self.turns[ask.turn]


SEARCHES = ((PLAN, SEARCH), (ANSWER,))


async def echo(call: ToolCall) -> str:
    return f"{call.argument}!"


def journal_of(runner: Runner, id: Any) -> Journal:
    return tuple(event.delta for event in runner.events if isinstance(event, Advanced) and event.id == id)


def plain(made: Trajectory) -> tuple[object, ...]:
    return made.token_ids.tolist(), made.action_mask.tolist(), made.logprobs.tolist(), made.text


def trajectory(result: Any) -> Trajectory:
    return result.trajectory if isinstance(result, Scored) else result
