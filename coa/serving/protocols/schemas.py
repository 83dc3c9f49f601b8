"""The requests of each protocol, with the fields that the agent reads. Requests to the model alone are handled by
vLLM's own handlers, which read the other fields."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coa.json_object import Json
from coa.serving.detail import Detail

Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=-1, lt=2**63)]
"""-1 draws a seed."""
StopSequence = Annotated[str, Field(min_length=1, max_length=256)]
StopSequences = Annotated[list[StopSequence], Field(max_length=16)]
MAX_CHOICES = 64
QUESTION = "Who is the current owner of Vexon Labs ?"
"""The example in /openapi.json."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="allow")


class Part(_Request):
    """A piece of a message's content."""

    type: str
    text: str | None = None


class Message(_Request):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None


class AgentOptions(BaseModel):
    """Additional options of each protocol, in the field `coa`: how an episode runs on the server."""

    model_config = ConfigDict(extra="forbid")

    max_turns: Count | None = None
    max_seconds: Annotated[float, Field(gt=0)] | None = None
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    samples: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    """Episodes of which one answer is selected; their tokens are all in the usage."""
    select: Literal["majority", "double_check"] = "majority"
    detail: Detail = Detail.standard
    """`all` shows each tag and each tool call as an item or block of its own, with types and fields that the protocol's
    published schema does not have; of chat completions and completions, only fields."""


class StreamOptions(_Request):
    include_usage: bool = False


Messages = Annotated[list[Message], Field(min_length=1, examples=[[{"role": "user", "content": QUESTION}]])]


class CreateChat(_Request):
    """POST /v1/chat/completions"""

    model: str
    messages: Messages
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: StopSequence | StopSequences | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = 1
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    coa: AgentOptions = AgentOptions()


class CreateCompletion(_Request):
    """POST /v1/completions"""

    model: str
    prompt: Annotated[str | list[str] | list[int] | list[list[int]], Field(examples=[QUESTION])]
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Seed | None = None
    stop: StopSequence | StopSequences | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = 1
    max_tokens: Count | None = None
    coa: AgentOptions = AgentOptions()


class ResponseItem(_Request):
    """An item of a response's input; `type` may be left out for messages."""

    type: str = "message"


class CreateResponse(_Request):
    """POST /v1/responses"""

    model: str
    input: Annotated[str | list[ResponseItem], Field(examples=[QUESTION])]
    instructions: str | None = None
    previous_response_id: str | None = None
    stream: bool | None = False
    store: bool | None = True
    background: bool | None = False
    temperature: Temperature | None = None
    top_p: TopP | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    metadata: dict[str, str] | None = None
    text: Json | None = None
    tools: list[Json] | None = None
    coa: AgentOptions = AgentOptions()


class CountTokens(_Request):
    """POST /v1/messages/count_tokens"""

    model: str
    messages: Messages
    system: str | list[Part] | None = None


class CreateMessage(CountTokens):
    """POST /v1/messages"""

    max_tokens: Count
    stop_sequences: StopSequences | None = None
    stream: bool | None = False
    temperature: Temperature | None = None
    top_p: TopP | None = None
    coa: AgentOptions = AgentOptions()
