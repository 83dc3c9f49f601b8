"""A team run in progress: what was said on its lines of work, and which moves can be made now.

    moves ---> ask an agent, call a tool (several at once where a team works in parallel) ---> take ---> moves ...

A run is pure: `take` gets the result of a move, and the team's rules (`coa.teams.planner`, `debate`, `refine`) say what
follows. `coa.teams.play` makes the moves.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from coa.agent.grammar import ANSWER, OBSERVATION, Profile, Span, goal_of, parse
from coa.agent.profiles import profile as find_profile
from coa.seeds import derive
from coa.teams.roles import TEAM, Role
from coa.teams.router import CallTool, Move, Speak
from coa.teams.teams import TeamConfig
from coa.teams.transcript import (
    AgentStep,
    Ending,
    Prompt,
    Reply,
    Step,
    ToolStep,
    Transcript,
    line_of,
    line_seed,
    make_prompt,
    others_of,
)
from coa.tools.base import PLAIN
from coa.tools.layouts import layout_of
from coa.types import Task
from coa.usage import Usage


@dataclass(frozen=True, slots=True)
class Assignment:
    """A task for the team. Attempts differ in their seed, so that another attempt may succeed."""

    task: Task
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that ended in an infrastructure failure: it is counted and issued again, and never becomes a transcript."""

    assignment: Assignment
    where: str
    """The error's type, e.g. "ToolDown"."""
    why: str
    usage: Usage = field(default_factory=Usage)
    """Usage of the run, both of replies that are kept and of requests without a reply."""


@dataclass(slots=True)
class Line:
    """One line of work, as the text that its agents see and as spans."""

    work: str
    said: list[Span]
    steps: int = 0


class TeamRun(ABC):
    """The state of one run. A subclass is a kind of team: its members and their rules, which are the first moves, and
    those that follow each move."""

    name: ClassVar[str]
    own_roles: ClassVar[tuple[Role, ...]] = ()
    """Roles that no other kind has brought."""
    settings: ClassVar[frozenset[str]] = frozenset()
    """The settings of `team` that this kind reads, of those that not all kinds read."""
    one_chain: ClassVar[bool] = False
    """Whether the steps of all lines, in order, are one chain, without the observations that the team writes; otherwise
    a chain is the winner's line."""
    any_tags: ClassVar[bool] = False
    """Whether its agents use the same tags under every profile; in the chain, others then take the place of those that
    the profile does not allow."""

    def __init__(
        self, assignment: Assignment, team: TeamConfig, *, seed: int, layouts: Sequence[str] = (PLAIN,)
    ) -> None:
        self.assignment, self.team = assignment, team
        self.seed = derive(seed, assignment.task.id, assignment.attempt)
        self.profile = find_profile(assignment.task.profile)
        self.lines = [Line("", []) for _ in range(self.lines_of(team))]
        self.winner = 0
        self.ending: Ending | None = None
        """How the run ended; None until it has ended."""
        self.moves: tuple[Move, ...] = self.begin()
        """The moves that can be made now, all at the same time; empty once the run is over."""
        self._layout = layout_of(assignment.task.id, layouts)
        self.steps: list[Step] = []

    @classmethod
    @abstractmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        """The roles that may be asked in runs of a profile."""
        ...

    @classmethod
    def lines_of(cls, team: TeamConfig) -> int:
        """The number of lines of work."""
        return 1

    @abstractmethod
    def begin(self) -> tuple[Move, ...]: ...

    @abstractmethod
    def follow(self, move: Move, text: str) -> tuple[Move, ...]:
        """The moves that follow a move with this result; sets `ending` if the run is over."""
        ...

    @abstractmethod
    def fits(self, move: Speak, reply: str) -> bool:
        """Whether the agent may give this reply to this move."""
        ...

    def prompt(self, move: Speak) -> Prompt:
        others = others_of(self.steps, move.line) if len(self.lines) > 1 else ""
        work, seed = self.lines[move.line].work, line_seed(self.seed, move.line)
        return make_prompt(self.assignment.task, self.team.brief(move.agent), work, others, seed)

    def take(self, move: Move, reply: Reply) -> None:
        """Takes the result of one of `moves`: an agent's reply, or an observation as a reply without usage."""
        assert move in self.moves
        self.moves = tuple(other for other in self.moves if other != move)
        line = self.lines[move.line]
        if isinstance(move, CallTool):
            step: Step = ToolStep(move.call, reply.text, move.line)
            line.said.append(Span(OBSERVATION, reply.text))
        else:
            step = AgentStep(move.agent, reply.text, move.line, reply.usage)
            line.said.extend(parse(reply.text).chain)
        self._add(step)
        line.steps += 1
        opened = self.follow(move, reply.text)
        goes_on = bool(opened) and all(other.line == move.line for other in opened)
        if goes_on and line.steps >= self.team.max_steps:
            opened = self.give_up(move.line, Ending.OUT_OF_STEPS)
        self.moves = () if self.ending else (*self.moves, *map(self._with_goal, opened))

    def give_up(self, line: int, ending: Ending) -> tuple[Move, ...]:
        """Ends a line that can't continue: returns the moves of the other lines, or ends the run."""
        self.ending = ending
        return ()

    def announce(self, line: int, text: str) -> None:
        """Adds a step that the team's rules write."""
        self.lines[line].said.extend(parse(text).chain)
        self._add(AgentStep(TEAM, text, line))

    def answer_on(self, line: int) -> str:
        """The last answer on a line that has one."""
        return next(span.text.strip() for span in reversed(self.lines[line].said) if span.tag == ANSWER)

    def transcript(self) -> Transcript:
        assert self.ending is not None
        return Transcript(
            task=self.assignment.task,
            attempt=self.assignment.attempt,
            seed=self.seed,
            steps=tuple(self.steps),
            ending=self.ending,
            team=self.name,
            winner=self.winner,
        )

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        line = self.lines[step.line]
        if text := line_of(step):
            line.work = f"{line.work}\n{text}" if line.work else text

    def _with_goal(self, move: Move) -> Move:
        """The move; a call gets the goal of its caller and the layout of its task."""
        if isinstance(move, Speak):
            return move
        goal = goal_of(self.lines[move.line].said)
        return replace(move, call=replace(move.call, goal=goal, layout=self._layout))
