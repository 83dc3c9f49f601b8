import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from actors.tools.executor import ToolStats
from actors.tools.remote import ToolClient
from cluster import watch
from coa.config import load
from coa.errors import ToolDown
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of
from jobs.stages import services
from jobs.stages.services import COUNTED, counts_since, tool_counts
from tests.support.patience import PATIENCE_S


class Tools(ToolClient):
    def __init__(self, **stats: ToolStats) -> None:
        self._stats = stats

    async def stats(self) -> dict[str, ToolStats]:
        return self._stats


def counted(**counts: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COUNTED, 0), "histogram": {}, **counts}


def test_calls_are_counted_by_tool() -> None:
    tools = Tools(a=ToolStats(calls=5, hits=1, seconds=2.5, histogram={"1": 3, "0.5": 1}), b=ToolStats())
    found = asyncio.run(tool_counts(tools))
    assert found == {"a": counted(calls=5, hits=1, seconds=2.5, histogram={"0.5": 1, "1": 3})}
    assert list(found["a"]["histogram"]) == ["0.5", "1"], "in the order of seconds"


def test_counts_of_a_stage_are_those_since_it_began() -> None:
    before = {"a": counted(calls=3, histogram={"1": 2, "2": 1}), "quiet": counted(calls=4, histogram={"1": 4})}
    new = counted(calls=1, histogram={"0.5": 1})
    now = {**before, "a": counted(calls=5, histogram={"1": 4, "2": 1}), "new": new}
    assert counts_since(before, now) == {"a": counted(calls=2, histogram={"1": 2}), "new": new}


def test_an_executor_that_counts_from_zero_again_takes_nothing_away() -> None:
    before, now = {"a": counted(calls=3, histogram={"1": 3})}, {"a": counted(calls=2, histogram={"2": 2})}
    assert counts_since(before, now) == {}


def test_services_of_a_server_that_ray_serve_starts_are_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody has a console there: the replica's log names a service that stays away."""
    said, named = list[str](), threading.Event()

    def note(text: str) -> None:
        said.append(text)
        named.set()

    async def up() -> None:
        pass

    async def away() -> None:
        raise ToolDown("port 80: in use")

    class Site:
        start = SimpleNamespace(remote=lambda: "http://127.0.0.1:80")
        hold = SimpleNamespace(remote=lambda address: None)
        check = SimpleNamespace(remote=away)

    class Dispatcher:
        mistake = SimpleNamespace(remote=lambda: "")
        check = SimpleNamespace(remote=up)

    monkeypatch.setattr(services, "ray", SimpleNamespace(get=lambda value: value))
    monkeypatch.setattr(services, "make_site", lambda web: Site())
    monkeypatch.setattr(services, "_dispatcher", lambda config, world, address: Dispatcher())
    monkeypatch.setattr(services._log, "warning", note)
    monkeypatch.setattr(watch, "AWAY_S", 0.02)
    monkeypatch.setattr(watch, "LOOK_EVERY_S", 0.01)
    config = load(Recipe, find_recipe("tiny"), ())
    assert isinstance(services.start_tools(config, world_of(config)), ToolClient)
    assert named.wait(PATIENCE_S)
    assert said[0] == (
        "the web site of the world tiny: no answer for 0 s (ToolDown: port 80: in use); what needs it fails or waits"
    )
