"""A run of another system, as read from its logs: what each agent said, which tools were called, the answer.

a recorded session, a memory of smolagents, ...  ->  ForeignRun  ->  Transcript (coa.distill.sources.write)
"""

from dataclasses import dataclass, field
from enum import StrEnum

from coa.agent.grammar import Span
from coa.json_object import JsonView
from coa.usage import Usage


class Reason(StrEnum):
    """Why a run, or a line of a recording, is not imported."""

    UNREADABLE = "not a run of this format"
    TORN = "a line that was not written to its end"
    MISSING_CALL = "a call of its model that was not written to its end"
    NOT_TEXT = "a picture, or another part of a message that is no text"
    CUT = "a request that lacks the beginning of its conversation"
    NOT_HEARD = "it continues a reply that is not in its recording"
    NO_TASK = "no task of the file is its task"
    EMPTY = "nobody said anything"
    FAILED = "it broke off with an error"
    UNKNOWN_TOOL = "a tool that nobody has mapped"
    UNKNOWN_ARGUMENT = "a tool's argument that cannot be told"
    NOT_OF_PROFILE = "a tool that the profile lacks"
    NO_RESULT = "a tool call without its result"
    NO_CALL = "a tool's result without a call that can be told"
    RESULTS_IN_ONE = "results of several tools in one text"
    TOOLS_IN_PROGRAM = "a program that calls tools"
    NOT_WHOLE = "a program that needs names from outside it"
    OWN_OBSERVATION = "an observation that the agent wrote itself"
    NOT_LEARNT = "a reply of weight 0, which is not to be learnt"
    NOT_COMPUTED = "an answer that a program gave and that cannot be computed again"


class Refused(Exception):
    """A run cannot be imported; the text says why."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Refusal:
    """A run that is not imported: `Refusal("recorded/run-1.jsonl", Reason.UNKNOWN_TOOL, "send_mail")`"""

    where: str
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Thought:
    """The model's reasoning before its reply; becomes `think`."""

    text: str


@dataclass(frozen=True, slots=True)
class Remark:
    """A text of an agent whose role depends on its position (`coa.distill.sources.write`)."""

    text: str
    meant: str = ""
    """The tag that its author intended, such as "plan"; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call of the other system, and its result."""

    name: str
    """Name of the tool in the other system."""
    arguments: JsonView | str
    """The arguments, as an object or as JSON text."""
    result: str | None
    """The tool's result; None if it was not recorded."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The final answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Computed:
    """The last program of an agent, which gave the answer; its output was not recorded and is recomputed
    (`coa.distill.sources.computing`)."""

    program: str
    answering: frozenset[str]
    """Names of the functions by which the program gives the answer."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A user's message between two replies, which is no result of a tool."""

    text: str


Piece = Thought | Remark | Span | Call | Answer | Computed | Heard
"""A part of an agent's reply; a Span comes from an agent that writes our tags."""


@dataclass(frozen=True, slots=True)
class Activation:
    """One reply of an agent: its texts and calls, in order."""

    agent: str
    pieces: tuple[Piece, ...]
    usage: Usage = field(default_factory=Usage)
    model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignRun:
    """A run of another system."""

    where: str
    """Source of the run, for messages: "recorded/run-1.jsonl"."""
    team: str
    """The system that made the run."""
    ids: tuple[str, ...]
    """Candidate ids of its task, the most certain first."""
    question: str
    """The run's first text, which holds the task's question."""
    activations: tuple[Activation, ...]
