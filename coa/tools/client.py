"""The caller's end of a tool executor."""

from collections.abc import Awaitable, Callable, Sequence

from coa.errors import InfrastructureError
from coa.gather import Gather
from coa.tools.base import ToolCall

CallMany = Callable[[Sequence[ToolCall]], Awaitable[Sequence[str | InfrastructureError]]]


class ToolClient(Gather[ToolCall, str]):
    """`await ToolClient(call_many)(call)` is an observation's text; raises the InfrastructureError that was met."""
