"""Ends an answer at the first of a request's stop sequences, which the answer does not contain.

The agent writes its answer to the end; what follows a stop sequence is left out, of a stream too.
"""

from collections.abc import Sequence
from dataclasses import replace

from coa.agent.grammar import ANSWER
from coa.serving.chain import Closed, Opened, Text
from coa.serving.events import Event, Finished


class Stopping:
    """Takes the events of one episode, and returns those that a client gets."""

    def __init__(self, sequences: Sequence[str]) -> None:
        """sequences: not empty texts."""
        self._sequences = sequences
        self._in_answer = False
        self._held = ""
        """Text of the answer that may be the beginning of a stop sequence."""
        self._found = ""
        """The stop sequence that has ended the answer."""

    def take(self, event: Event) -> list[Event]:
        match event:
            case Opened(tag):
                self._in_answer, self._held, self._found = tag == ANSWER, "", ""
            case Text(text) if self._in_answer:
                return [Text(piece)] if (piece := self._pass_on(text)) else []
            case Closed(text=text) if self._in_answer:
                rest, self._held, self._in_answer = self._held, "", False
                return [*([Text(rest)] if rest else []), replace(event, text=self._cut(text))]
            case Finished(answer=answer):
                cut = self._cut(answer)
                return [event if cut == answer else replace(event, answer=cut, stopped_by=self._first(answer)[1])]
            case _:
                pass
        return [event]

    def _pass_on(self, text: str) -> str:
        if self._found:
            return ""
        whole = self._held + text
        at, self._found = self._first(whole)
        if self._found:
            self._held = ""
            return whole[:at]
        keep = self._overlap(whole)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]

    def _cut(self, text: str) -> str:
        at, found = self._first(text)
        return text[:at] if found else text

    def _first(self, text: str) -> tuple[int, str]:
        """Where the first stop sequence is, and which one."""
        places = [(at, one) for one in self._sequences if (at := text.find(one)) >= 0]
        return min(places, key=lambda place: place[0], default=(len(text), ""))

    def _overlap(self, text: str) -> int:
        """Number of characters at the end that may be the beginning of a stop sequence."""
        most = min(len(text), max(map(len, self._sequences), default=1) - 1)
        return next(
            (
                n
                for n in range(most, 0, -1)
                if any(len(one) > n and one.startswith(text[-n:]) for one in self._sequences)
            ),
            0,
        )
