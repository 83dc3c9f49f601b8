"""An engine that is an actor, as the pool has it."""

import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from actors.tools.remote import ToolClient
from cluster import engine_actor
from cluster.engine_actor import signs_of, with_signs
from tests.support.patience import soon


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


class Slow:
    """An actor whose constructor takes until a file is there, and says how far it is."""

    def __init__(self, *, incarnation: str, until: Path) -> None:
        self.incarnation = incarnation
        for share in count():
            print(f"weights: {share / 100} %", flush=True)
            time.sleep(0.1)
            if until.exists():
                break

    async def ready(self) -> str:
        return f"{type(self).__name__} {self.incarnation}"


def test_an_actor_shows_progress_while_it_is_made_and_none_once_it_is_ready(ray_session: None, tmp_path: Path) -> None:
    import ray

    make = ray.remote(with_signs(Slow, every_s=0.2))
    actor: Any = make.remote(incarnation="a-0", until=tmp_path / "made")
    answer: Any = actor.ready.remote()
    first = soon(lambda: signs_of("a-0"))
    assert first
    assert soon(lambda: signs_of("a-0") > first)
    (tmp_path / "made").touch()
    assert ray.get(answer) == "Slow a-0"
    assert soon(lambda: not signs_of("a-0"))
    ray.kill(actor)
