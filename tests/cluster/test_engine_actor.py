"""An engine that is an actor, as the pool has it."""

from collections.abc import Sequence
from typing import Any

import pytest

from actors.tools.remote import ToolClient
from cluster import engine_actor


class Tools(ToolClient):
    def __init__(self) -> None:
        self.refused: list[str] = []

    def refuse(self, callers: Sequence[str]) -> None:
        self.refused += callers


def test_calls_of_an_engine_that_was_ended_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may only be suspended, and go on later."""
    ended: list[Any] = []
    monkeypatch.setattr("ray.kill", ended.append)
    monkeypatch.setattr(engine_actor, "remove_placement_group", ended.append)
    tools, place = Tools(), "place"
    found: Any = engine_actor.EngineActor
    found("handle", place, "node", "engine-0-1", tools).kill()
    assert tools.refused == ["engine-0-1"]
    assert ended == ["handle", place]
