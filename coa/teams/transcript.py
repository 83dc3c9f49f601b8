"""The transcript of a team run: the outputs of agents, the results of tools, and the prompt of each agent's step."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from coa.agent.grammar import ANSWER, OBSERVATION, Span, parse, render_span
from coa.errors import InfrastructureError
from coa.seeds import derive
from coa.teams.roles import DONE, DOUBLE_CHECK, TEAM, TOOL, system_prompt
from coa.tools.base import ToolCall
from coa.types import Task
from coa.usage import Usage

QUESTION = "Question: "
WORK = "\n\nWork so far:\n"
OTHERS = "\n\nAnswers of others:\n"
USER = "user"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: `Message("system", "You are the planner ...")`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """The input of one agent: a system message, and a user message with the task and the team's work so far."""

    role: str
    profile: str
    messages: tuple[Message, ...]
    seed: int
    """The same at every step of a line."""


@dataclass(frozen=True, slots=True)
class AgentStep:
    """Text that an agent wrote."""

    agent: str
    output: str
    """Tag text."""
    line: int = 0
    """The line of work that it belongs to; a team without parallel work has line 0 alone."""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ToolStep:
    """The result of a tool call."""

    call: ToolCall
    observation: str
    line: int = 0


@dataclass(frozen=True, slots=True)
class UserStep:
    """A user's message in the middle of an imported run, where no tool's result was due."""

    text: str
    line: int = 0


Step = AgentStep | ToolStep | UserStep


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of a move: an agent's tag text, or an observation."""

    text: str
    usage: Usage = field(default_factory=Usage)


class Mind(Protocol):
    """The source of an agent's replies: scripted experts, or a language model behind an endpoint."""

    async def replies(self, prompts: list[Prompt]) -> list[Reply | InfrastructureError]:
        """A reply for each prompt, or an InfrastructureError if there is none."""
        ...


class Ending(StrEnum):
    """How a team run ended; a run that ended in an infrastructure failure has no transcript."""

    ANSWERED = "answered"
    MALFORMED = "malformed"
    """The run ended with a reply that is not tag text of its role."""
    OUT_OF_STEPS = "out of steps"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One team run: `prompt_of(transcript, i)` is what the agent of step i was sent."""

    task: Task
    attempt: int
    seed: int
    steps: tuple[Step, ...]
    ending: Ending
    team: str = "planner"
    """A name of `coa.teams.kinds.KINDS`, or the system that the run was imported from."""
    models: tuple[tuple[str, str], ...] = ()
    """(role, model) of each role that a language model played. In runs of this system the model is the recipe's name
    for it and its own: ("planner", "strong: gpt-4.1")."""
    winner: int = 0
    """The line whose work led to the answer; it becomes the chain."""

    @property
    def usage(self) -> Usage:
        """Usage of all steps."""
        return sum((step.usage for step in self.steps if isinstance(step, AgentStep)), Usage())

    @property
    def answer(self) -> str:
        """Body of the answer tag; empty unless the run ended with one."""
        if self.ending is not Ending.ANSWERED:
            return ""
        last = next(step for step in reversed(self.steps) if step.line == self.winner)
        assert isinstance(last, AgentStep)
        span = parse(last.output).chain[-1]
        assert span.tag == ANSWER
        return span.text.strip()

    @property
    def settled(self) -> tuple[int, ...]:
        """The lines whose answer the team settled on, the winner's first: those of a debate that agreed with it."""
        lines = {step.line for step in self.steps if isinstance(step, AgentStep) and _settles(step)}
        return (self.winner, *sorted(lines - {self.winner}))


@dataclass(frozen=True, slots=True)
class Graded:
    """A run, and whether its answer is right; None for a task without an accepted answer."""

    transcript: Transcript
    correct: bool | None
    objection: str = ""
    """The objection of a judge of obedience to the run; empty if it has none or no judge was asked."""

    @property
    def usage(self) -> Usage:
        return self.transcript.usage


def _settles(step: AgentStep) -> bool:
    return step.agent == TEAM and [span.tag for span in parse(step.output).chain[-1:]] == [ANSWER]


def is_routing(step: Step) -> bool:
    """Whether the step only hands the run to the next agent."""
    return isinstance(step, AgentStep) and step.output.strip() == DONE


def line_of(step: Step) -> str:
    """A step as other agents see it: `searcher: <web_search> Vexon Labs owner</web_search>`; "" for pure routing."""
    if is_routing(step):
        return ""
    if isinstance(step, AgentStep):
        return f"{step.agent}: {step.output}"
    author, text = (TOOL, step.observation) if isinstance(step, ToolStep) else (USER, step.text)
    return f"{author}: {render_span(Span(OBSERVATION, text))}"


def others_of(steps: Sequence[Step], line: int) -> str:
    """The answers on the other lines, a text line each, up to the phases that are over on this line: agents that work
    at the same time do not see each other's replies."""
    ended: dict[int, list[Span]] = defaultdict(list)
    for step in steps:
        last = parse(step.output).chain[-1:] if isinstance(step, AgentStep) else ()
        ended[step.line].extend(span for span in last if span.tag in (ANSWER, DOUBLE_CHECK))
    phases = len(ended[line])
    seen = {
        other: [span.text.strip() for span in ends[:phases] if span.tag == ANSWER]
        for other, ends in sorted(ended.items())
        if other != line
    }
    return "\n".join(f"- {answers[-1]}" for answers in seen.values() if answers)


@dataclass(frozen=True, slots=True)
class Brief:
    """A team's settings for the agent of a role: its duty ("" for the role's own) and its tools."""

    role: str
    duty: str = ""
    tools: tuple[str, ...] = ()


def make_prompt(task: Task, brief: Brief, work: str, others: str, seed: int) -> Prompt:
    """The prompt of an agent. work: `line_of` the steps so far, a text line each; others: `others_of` them."""
    system = system_prompt(brief.role, task.profile, brief.duty, brief.tools)
    user = f"{QUESTION}{task.question}{WORK if work else ''}{work}{OTHERS if others else ''}{others}"
    messages = (Message("system", system), Message("user", user))
    return Prompt(role=brief.role, profile=task.profile, messages=messages, seed=seed)


def prompt_of(transcript: Transcript, step: int) -> Prompt:
    """The prompt that led to an agent's step, in a team whose roles have their standard duties: all that was written
    before on its line, and the answers on the other lines. Raises ValueError for a step of a tool or a user."""
    asked, before = transcript.steps[step], transcript.steps[:step]
    if not isinstance(asked, AgentStep):
        raise ValueError(f"step {step} of {transcript.task.id} is a tool's or a user's, which is sent no prompt")
    lines = (line_of(earlier) for earlier in before if earlier.line == asked.line)
    work = "\n".join(line for line in lines if line)
    others = others_of(before, asked.line)
    return make_prompt(transcript.task, Brief(asked.agent), work, others, line_seed(transcript.seed, asked.line))


def line_seed(seed: int, line: int) -> int:
    """The seed of a line of a run; the first line has the run's own."""
    return derive(seed, "line", line) if line else seed
