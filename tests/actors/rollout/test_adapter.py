"""What an engine's actor does when vLLM's core is gone, by itself or because it was shut down."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig, SamplingConfig
from coa.agent.codec import Stops
from coa.agent.episode import Ask

TOKENS = np.arange(1, 5, dtype=np.int32)


class DyingLlm:
    """A core that answers nothing until it is gone; then each request fails."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()
        self.asked = asyncio.Event()
        self.output_processor = SimpleNamespace(
            process_outputs=lambda outputs: None, get_num_unfinished_requests=lambda: 0
        )
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(enable_sleep_mode=False, max_model_len=64),
            scheduler_config=SimpleNamespace(max_num_batched_tokens=64),
            cache_config=SimpleNamespace(block_size=16, num_gpu_blocks=4),
        )

    async def _wait(self) -> None:
        self.asked.set()
        await self.gone.wait()
        raise EngineDeadError

    async def get_weight_version(self) -> int:
        await self._wait()
        raise AssertionError

    async def reset_prefix_cache(self) -> None:
        await self._wait()

    async def generate(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        await self._wait()
        yield

    def shutdown(self) -> None:
        self.gone.set()


async def turn(adapter: PolicyAdapter) -> object:
    ask = Ask(prompt=TOKENS, turn=0, max_tokens=8, constraint=None)
    return await adapter.generate(ask, sampling=SamplingConfig(), stops=Stops((), ()), seed=0, priority=0)


CALLS: dict[str, Callable[[PolicyAdapter], Awaitable[object]]] = {
    "version": lambda adapter: adapter.version(),
    "turn": turn,
    "log-probs": lambda adapter: adapter.logprobs(TOKENS),
    "sleep": lambda adapter: adapter.sleep(),
}


class Ended(BaseException):
    """In place of the end of this process."""


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("shut", [True, False])
def test_a_process_ends_with_a_core_that_dies_and_not_with_one_that_was_shut_down(
    shut: bool, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(status: int) -> None:
        raise Ended(status)

    async def main() -> None:
        llm = DyingLlm()
        monkeypatch.setattr("actors.rollout.adapter.start_llm", lambda *_, **__: llm)
        adapter = PolicyAdapter("model", EngineConfig(), max_tokens=64, tag_tokens=frozenset())
        under_way = asyncio.ensure_future(CALLS[call](adapter))
        await llm.asked.wait()
        (adapter if shut else llm).shutdown()
        await under_way

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(EngineDeadError if shut else Ended) as raised:
        asyncio.run(main())
    if not shut:
        assert raised.value.args == (1,)
