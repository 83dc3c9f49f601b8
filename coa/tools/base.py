"""What a tool is: an argument in, an observation's text out.

A tool that works but has nothing good to say (no such page, the program raised) returns text that says so: the
policy reads it. A tool that cannot work raises `ToolDown`, and the episode that called it never becomes a sample.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ToolCall:
    tool: str
    """Name of the tool's tag."""
    argument: str
    """Body of the tag, stripped."""


class Tool(Protocol):
    @property
    def cacheable(self) -> bool:
        """Whether the same argument always gives the same text within a run."""
        ...

    async def __call__(self, argument: str) -> str:
        """The observation's text; raises ToolDown."""
        ...
