"""What a team run was: who wrote what, what the tools returned, and what each agent saw when it wrote."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from coa.errors import InfrastructureError
from coa.grammar import ANSWER, OBSERVATION, Span, parse, render_span
from coa.seeds import derive
from coa.teachers.roles import DONE, DOUBLE_CHECK, TOOL, system_prompt
from coa.tools.base import ToolCall
from coa.types import Task
from coa.usage import Usage

QUESTION = "Question: "
WORK = "\n\nWork so far:\n"
OTHERS = "\n\nAnswers of others:\n"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: `Message("system", "You are the planner ...")`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What one agent is asked: a system message and a user message with the task and the team's work so far."""

    role: str
    profile: str
    messages: tuple[Message, ...]
    seed: int
    """The same at every step of a line."""


@dataclass(frozen=True, slots=True)
class AgentStep:
    agent: str
    output: str
    """Tag text."""
    line: int = 0
    """Which of a team's parallel lines of work it belongs to; a team without parallel work has line 0 alone."""
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class ToolStep:
    call: ToolCall
    observation: str
    line: int = 0


Step = AgentStep | ToolStep


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    usage: Usage = field(default_factory=Usage)


class Mind(Protocol):
    """What thinks in an agent's place: scripted experts, or a language model behind an endpoint."""

    async def replies(self, prompts: list[Prompt]) -> list[Reply | InfrastructureError]:
        """One reply per prompt, its text tag text; an InfrastructureError where none could be had."""
        ...


class Ending(StrEnum):
    """How a team run ended; infrastructure failures leave no transcript."""

    ANSWERED = "answered"
    MALFORMED = "malformed"
    """A reply that is not tag text of its role."""
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
    """A name of `coa.teachers.teams.Rules`, or the system that the run was imported from."""
    models: tuple[tuple[str, str], ...] = ()
    """(role, model) of each role that a language model played; of a team here, ("planner", "strong: gpt-4.1"), which is
    the recipe's name for the model and its own."""
    winner: int = 0
    """The line whose work the answer rests on: that becomes the chain."""

    @property
    def usage(self) -> Usage:
        """Of all steps."""
        return sum((step.usage for step in self.steps if isinstance(step, AgentStep)), Usage())

    @property
    def answer(self) -> str:
        """Body of the answer tag; empty unless the run ended with one."""
        if self.ending is not Ending.ANSWERED:
            return ""
        last = self.steps[-1]
        assert isinstance(last, AgentStep)
        span = parse(last.output).chain[-1]
        assert span.tag == ANSWER
        return span.text.strip()


@dataclass(frozen=True, slots=True)
class Graded:
    """A run, and whether its answer is right; None where nobody could tell (a task without an accepted answer)."""

    transcript: Transcript
    correct: bool | None
    objection: str = ""
    """What a judge of obedience found wrong with the run; empty where it found nothing or none was asked."""

    @property
    def usage(self) -> Usage:
        return self.transcript.usage


def is_routing(step: Step) -> bool:
    """Whether the step only hands the run on."""
    return isinstance(step, AgentStep) and step.output.strip() == DONE


def line_of(step: Step) -> str:
    """How the others see a step: `searcher: <web_search> Vexon Labs owner</web_search>`; "" for pure routing."""
    if is_routing(step):
        return ""
    if isinstance(step, AgentStep):
        return f"{step.agent}: {step.output}"
    return f"{TOOL}: {render_span(Span(OBSERVATION, step.observation))}"


def others_of(steps: Sequence[Step], line: int) -> str:
    """The answers on the other lines, each on a line of its own, as of the phases that are over on this one: who
    works at the same time does not see what the others are about to say."""
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
    """What a team tells the agent of a role besides the work: its duty, "" for the role's own, and its tools."""

    role: str
    duty: str = ""
    tools: tuple[str, ...] = ()


def make_prompt(task: Task, brief: Brief, work: str, others: str, seed: int) -> Prompt:
    """`work`: the `line_of` of the steps so far, each on a line of its own; `others`: `others_of` them."""
    system = system_prompt(brief.role, task.profile, brief.duty, brief.tools)
    user = f"{QUESTION}{task.question}{WORK if work else ''}{work}{OTHERS if others else ''}{others}"
    messages = (Message("system", system), Message("user", user))
    return Prompt(role=brief.role, profile=task.profile, messages=messages, seed=seed)


def prompt_of(transcript: Transcript, step: int) -> Prompt:
    """The prompt of an agent's step under a team that leaves the roles' duties as they are: every agent sees all that
    was written before it on its line, and the answers on the others. ValueError for a tool's step."""
    asked, before = transcript.steps[step], transcript.steps[:step]
    if isinstance(asked, ToolStep):
        raise ValueError(f"step {step} of {transcript.task.id} is a tool's, which is sent no prompt")
    lines = (line_of(earlier) for earlier in before if earlier.line == asked.line)
    work = "\n".join(line for line in lines if line)
    others = others_of(before, asked.line)
    return make_prompt(transcript.task, Brief(asked.agent), work, others, line_seed(transcript.seed, asked.line))


def line_seed(seed: int, line: int) -> int:
    """The seed of a line of a run; the first has the run's."""
    return derive(seed, "line", line) if line else seed
