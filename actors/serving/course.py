"""The course of one answer: what it follows from, and its notes for the front (`coa.serving.resumption`)."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from coa.serving.resumption import Note, Origin, Over, ids_of, new_origin, note_of, over_in


class Course:
    def __init__(self, origin: Origin | None = None) -> None:
        self.origin = origin or new_origin(noted=False)
        self.new_id = ids_of(self.origin)
        """Returns the answer's next id with a prefix."""
        self._notes: list[str] = []

    def note(self, note: Note) -> None:
        if self.origin.noted:
            self._notes.append(note_of(note))

    def over(self) -> int:
        """When the episode ended, in seconds since 1970: now, if it has not ended before."""
        if (at := over_in(self.origin.record)) is None:
            at = int(time.time())
            self.note(Over(at))
        return at

    async def noted(self, events: AsyncGenerator[str]) -> AsyncGenerator[str]:
        """The events, each after the notes of the steps that it follows from."""
        async with aclosing(events):
            async for event in events:
                if self._notes:
                    notes, self._notes = "".join(self._notes), []
                    yield notes
                yield event
