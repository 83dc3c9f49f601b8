"""When an engine sleeps and wakes, on a device that can and on one that can't."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from actors.rollout.sleep import LEVEL, Sleeper


class FakeLlm:
    def __init__(self, able: bool) -> None:
        self.vllm_config = SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=able))
        self.calls: list[Any] = []
        self.sleep_s = 0.0

    async def sleep(self, level: int, mode: str) -> None:
        self.calls.append(("sleep", level, mode))
        await asyncio.sleep(self.sleep_s)

    async def wake_up(self) -> None:
        self.calls.append("wake")

    async def reset_prefix_cache(self) -> None:
        self.calls.append("no prefixes")


def test_it_sleeps_once_and_wakes_once() -> None:
    llm: Any = FakeLlm(able=True)
    sleeper = Sleeper(llm)

    async def go() -> None:
        await sleeper.wake()
        assert llm.calls == [], "it is awake"
        for _ in range(2):
            await sleeper.sleep()
        for _ in range(2):
            await sleeper.wake()
        await sleeper.sleep()

    asyncio.run(go())
    asleep = ("sleep", LEVEL, "keep")
    assert llm.calls == [asleep, "wake", asleep]


def test_a_sleep_whose_caller_is_gone_is_followed_by_a_wake() -> None:
    llm: Any = FakeLlm(able=True)
    llm.sleep_s = 60.0
    sleeper = Sleeper(llm)

    async def go() -> None:
        asked = asyncio.ensure_future(sleeper.sleep())
        await asyncio.sleep(0.01)
        assert not asked.done()
        asked.cancel()
        await asyncio.wait({asked})
        await sleeper.wake()

    asyncio.run(go())
    assert llm.calls[-1] == "wake"


def test_where_there_is_no_sleep_mode_prefixes_go_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    llm: Any = FakeLlm(able=False)
    sleeper = Sleeper(llm)

    async def go() -> None:
        for _ in range(2):
            await sleeper.sleep()
            await sleeper.wake()

    with caplog.at_level(logging.WARNING):
        asyncio.run(go())
    assert llm.calls == ["no prefixes"] * 2
    assert len([one for one in caplog.messages if "no sleep mode on this device" in one]) == 1
