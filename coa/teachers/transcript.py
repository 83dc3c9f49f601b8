"""What a team run was: who wrote what, what the tools returned, and what each agent saw when it wrote."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from coa.errors import InfrastructureError
from coa.grammar import ANSWER, OBSERVATION, Span, parse, render_span
from coa.teachers.roles import DONE, TOOL, system_prompt
from coa.tools.base import ToolCall
from coa.types import Task

QUESTION = "Question: "
WORK = "\n\nWork so far:\n"


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message: `Message("system", "You are the planner ...")`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What one agent is asked: a system message and a user message with the task and the team's work so far."""

    messages: tuple[Message, ...]
    seed: int
    """For sampling the reply; the same at every step of a run."""


class Mind(Protocol):
    """What thinks in an agent's place: scripted experts, or a language model behind an endpoint."""

    async def replies(self, prompts: list[Prompt]) -> list[str | InfrastructureError]:
        """One reply per prompt, as tag text; an InfrastructureError where none could be had."""
        ...


@dataclass(frozen=True, slots=True)
class AgentStep:
    agent: str
    output: str


@dataclass(frozen=True, slots=True)
class ToolStep:
    call: ToolCall
    observation: str


Step = AgentStep | ToolStep


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


def make_prompt(task: Task, agent: str, lines: str, seed: int) -> Prompt:
    """`lines` are the `line_of` of the steps so far, each on a line of its own."""
    content = f"{QUESTION}{task.question}{WORK}{lines}" if lines else f"{QUESTION}{task.question}"
    return Prompt(messages=(Message("system", system_prompt(agent, task.profile)), Message("user", content)), seed=seed)


def prompt_of(transcript: Transcript, step: int) -> Prompt:
    """The prompt of an agent's step: every agent sees all that was written before it. ValueError for a tool's step."""
    asked = transcript.steps[step]
    if isinstance(asked, ToolStep):
        raise ValueError(f"step {step} of {transcript.task.id} is a tool's, which is sent no prompt")
    lines = "\n".join(line for before in transcript.steps[:step] if (line := line_of(before)))
    return make_prompt(transcript.task, asked.agent, lines, transcript.seed)
