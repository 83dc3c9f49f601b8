"""How much of an episode a protocol shows: the answer after one thought, or each tag and each tool as its own item.

The published schemas of the protocols know thoughts and answers; clients that check them refuse anything else. So the
chain before the answer is one thought by default, and a request asks for more (`AgentOptions.detail`).
"""

from enum import StrEnum

from coa.agent.grammar import ANSWER, OBSERVATION, THINK
from coa.serving.chain import Closed, Opened, Text
from coa.serving.events import Broke, Event, Finished, Returned


class Detail(StrEnum):
    standard = "standard"
    """A thought with the whole chain before the answer, tools included, and the answer."""
    all = "all"
    """Each tag and each tool call, with its cost."""


class AsThought:
    """Turns the events of one episode into those of an episode that thinks once and answers."""

    def __init__(self) -> None:
        self._thought: list[str] | None = None
        """Pieces of the open thought."""
        self._tokens = 0

    def take(self, event: Event) -> list[Event]:
        match event:
            case Opened(tag) if tag == ANSWER:
                return [*self._end(), event]
            case Opened(tag):
                return self._think(f"<{tag}> ")
            case Text(text) if self._thought is not None:
                return self._think(text)
            case Closed(tag, _, tokens) if tag != ANSWER:
                self._tokens += tokens
                return self._think(f"</{tag}>\n")
            case Returned(text=text):
                return self._think(f"<{OBSERVATION}> {text}</{OBSERVATION}>\n")
            case Finished() | Broke():
                return [*self._end(), event]
            case _:
                return [event]

    def _think(self, text: str) -> list[Event]:
        opened: list[Event] = []
        if self._thought is None:
            self._thought, opened = [], [Opened(THINK)]
        self._thought.append(text)
        return [*opened, Text(text)]

    def _end(self) -> list[Event]:
        if self._thought is None:
            return []
        text, tokens, self._thought, self._tokens = "".join(self._thought), self._tokens, None, 0
        return [Closed(THINK, text, tokens)]
