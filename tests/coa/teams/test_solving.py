"""What kinds of teams share: a tool's result goes to the agent that called it."""

from coa.agent.grammar import Profile, Span, render
from coa.teams.roles import GENERATOR, REFINER
from coa.teams.router import CallTool, Move, Speak
from coa.teams.run import Assignment
from coa.teams.solving import SolvingRun
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Ending, Reply
from tests.support.fakes import task


class Pair(SolvingRun):
    """Two different solvers, side by side."""

    name = "pair"
    solvers = frozenset({GENERATOR, REFINER})

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (GENERATOR, REFINER)

    @classmethod
    def lines_of(cls, team: TeamConfig) -> int:
        return 2

    def begin(self) -> tuple[Move, ...]:
        return (Speak(GENERATOR, 0), Speak(REFINER, 1))

    def after(self, move: Speak, text: str) -> tuple[Move, ...]:
        return () if self.moves else self.settle()


def said(tag: str, text: str) -> Reply:
    return Reply(render([Span(tag, text)]))


def test_each_result_goes_to_the_caller_on_its_line() -> None:
    run = Pair(Assignment(task()), TeamConfig(), seed=0)
    for line, agent in enumerate((GENERATOR, REFINER)):
        run.take(Speak(agent, line), said("wiki_search", "Arden"))
    for move in run.moves:
        assert isinstance(move, CallTool)
        run.take(move, Reply("Berg"))
    assert run.moves == (Speak(GENERATOR, 0), Speak(REFINER, 1))
    run.take(Speak(REFINER, 1), said("answer", "Berg"))
    assert run.ending is None
    run.take(Speak(GENERATOR, 0), said("answer", "Borg"))
    assert (run.ending, [step.line for step in run.transcript().steps]) == (Ending.ANSWERED, [0, 1, 0, 1, 1, 0])
