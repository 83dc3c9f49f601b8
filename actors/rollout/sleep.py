"""Sleep mode of an engine that shares its GPU with learners and takes turns with them."""

import logging
from typing import TYPE_CHECKING

from actors.weights.loader import answered

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

LEVEL = 1
"""Level of vLLM's sleep mode: the KV cache is dropped, and weights are moved to host memory, so that an engine that
fails to load newer weights after waking still has complete weights."""

MOVE_S = 300.0
"""Maximum seconds in which the weights are moved. The first time, as much host memory is allocated and pinned."""

logger = logging.getLogger(__name__)


class Sleeper:
    """Puts an engine's AsyncLLM to sleep and wakes it. The caller must not overlap calls."""

    def __init__(self, llm: "AsyncLLM") -> None:
        self._llm = llm
        self._able: bool = llm.vllm_config.model_config.enable_sleep_mode
        self._asleep = self._said = False

    async def sleep(self) -> None:
        """Frees the device's memory until `wake`. If the device has no sleep mode, the memory stays allocated, which is
        logged once, and only the prefix cache is cleared."""
        if self._asleep:
            return
        self._asleep = True  # set first: even if this call is cancelled, `wake` then wakes the engine
        if self._able:
            await answered(self._llm.sleep(LEVEL, mode="keep"), MOVE_S)
        else:
            if not self._said:
                logger.warning("vLLM has no sleep mode on this device: the engine's memory stays while learners learn")
            self._said = True
            await answered(self._llm.reset_prefix_cache())

    async def wake(self) -> None:
        """Allocates the memory again, with the previous weights and an empty KV cache. No effect if the engine is
        awake."""
        if self._asleep and self._able:
            await answered(self._llm.wake_up(), MOVE_S)
        self._asleep = False
