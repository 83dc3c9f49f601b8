"""How long an engine waits for its core and for others while it loads, in virtual time and without vLLM."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np
import pytest

from actors.weights import loader
from actors.weights.loader import ACKNOWLEDGE_S, ANSWER_S, RECEIVE_S, WeightLoader
from actors.weights.manifest import lay_out, seal
from actors.weights.transport import Published, slowest_s
from coa.errors import EngineDied, SyncError
from tests.support.virtual_time import in_virtual_time

LAYOUT = lay_out([("a", "U8", (3,))], 64)
PUBLISHED = Published(manifest=seal(1, LAYOUT, lambda start, stop: bytes(stop - start)), transport="fake", place=None)


async def for_ever(*_: Any, **__: Any) -> Any:
    await asyncio.Event().wait()


class Core:
    """Answers everything at once, but for what hangs."""

    def __init__(self, hangs: str = "", arrives: bool = True) -> None:
        self._hangs, self._arrives = hangs, arrives

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def answer(*_: Any, **__: Any) -> None:
            pass

        return for_ever if name == self._hangs else answer

    async def collective_rpc(self, method: str, args: Sequence[Any] = ()) -> list[Any]:
        if method == self._hangs:
            await for_ever()
        return [{"failure": None} if self._arrives else None] if method == "coa_received" else [None]


class Receiver:
    def __init__(self, acknowledge: Callable[..., Awaitable[None]]) -> None:
        self.acknowledge = acknowledge

    async def prepare(self, *_: Any) -> None:
        pass


class Loader(WeightLoader):
    """vLLM's own update is left out."""

    async def update(self, *_: Any, **__: Any) -> dict[str, str]:
        return {}


def load(monkeypatch: pytest.MonkeyPatch, core: Any, acknowledge: Callable[..., Awaitable[None]]) -> float:
    """Seconds until it is loaded."""
    monkeypatch.setattr(loader, "find_receiver", lambda name: Receiver(acknowledge))

    async def go() -> float:
        await Loader(core, clear_cache=True).load(1, PUBLISHED)
        return asyncio.get_running_loop().time()

    return in_virtual_time(go())


async def well(*_: Any) -> None:
    pass


async def gone(*_: Any) -> None:
    raise SyncError("the directory of weights does not answer")


@pytest.mark.parametrize(("acknowledge", "seconds"), [(well, 0.0), (gone, 0.0), (for_ever, ACKNOWLEDGE_S)])
def test_a_load_that_nobody_hears_of_has_succeeded(
    monkeypatch: pytest.MonkeyPatch, acknowledge: Callable[..., Awaitable[None]], seconds: float
) -> None:
    assert load(monkeypatch, Core(), acknowledge) == pytest.approx(seconds, abs=0.1)


CALLS = [
    "coa_receive",
    "coa_received",
    "pause_generation",
    "update_weight_version",
    "resume_generation",
    "coa_drop",
]


@pytest.mark.parametrize("hangs", CALLS)
def test_a_core_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, hangs: str) -> None:
    with pytest.raises(EngineDied, match=f"its core gave no answer for {ANSWER_S:g} s"):
        load(monkeypatch, Core(hangs), well)


def test_bytes_that_do_not_arrive_are_given_up_after_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SyncError, match=f"version 1 has not arrived after {RECEIVE_S:.0f} s"):
        load(monkeypatch, Core(arrives=False), well)
    assert slowest_s(64 * 10**9) == 128.0
    assert slowest_s(np.zeros(0, np.uint8).nbytes) == 0.0
