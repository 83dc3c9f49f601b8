"""Sleep of an engine whose GPU is the learners' between its turns."""

import logging
from typing import Any

from actors.weights.loader import answered

LEVEL = 1
"""Of vLLM's sleep mode: the KV cache is thrown away, and weights go to the host's memory, so that an engine that can't
load newer ones after it woke still has whole ones."""

logger = logging.getLogger(__name__)


class Sleeper:
    """Around an engine's AsyncLLM. The caller sees to it that calls follow one another."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._able: bool = llm.vllm_config.model_config.enable_sleep_mode
        self._asleep = self._said = False

    async def sleep(self) -> None:
        """Gives up the device's memory until `wake`. Where the device has no sleep mode, memory stays as it is, which
        is said once; the prefix cache is empty afterwards all the same."""
        if self._asleep:
            return
        self._asleep = True  # also where the call is given up: who wakes it then waits for its end
        if self._able:
            await answered(self._llm.sleep(LEVEL, mode="keep"))
        else:
            if not self._said:
                logger.warning("vLLM has no sleep mode on this device: the engine's memory stays while learners learn")
            self._said = True
            await answered(self._llm.reset_prefix_cache())

    async def wake(self) -> None:
        """Takes the memory again, with the weights of before and an empty KV cache. Without effect on one awake."""
        if self._asleep and self._able:
            await answered(self._llm.wake_up())
        self._asleep = False
