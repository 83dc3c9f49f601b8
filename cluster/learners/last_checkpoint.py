"""A last checkpoint of learners whose driver gets SIGTERM, as before its machine is taken away."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

from cluster.session import interrupt, last_wish
from coa.concurrency import Spawn


class LastCheckpoint:
    def __init__(self, grace_s: float, ask: Callable[[], Awaitable[int | None]], say: Callable[[str], None]) -> None:
        """grace_s: maximum seconds for it; 0 for none. ask: has the learners write it, and returns its version, or None
        if there is nothing new to write. say: takes a line for the user."""
        self._grace_s, self._ask, self._say = grace_s, ask, say
        self._version = 0
        """Version of the newest checkpoint that is committed."""
        self._changed = asyncio.Event()
        self._leaving = False
        """Whether SIGTERM has come, and nothing is interrupted yet."""

    def committed(self, version: int) -> None:
        """A checkpoint is committed, or learners have begun at one."""
        self._version = version
        self._changed.set()

    @contextmanager
    def on_sigterm(self, spawn: Spawn) -> Iterator[None]:
        """Within the context, SIGTERM leads to the checkpoint. spawn: runs work in this event loop, and cancels it at
        the end of the context at the latest."""
        if not self._grace_s:
            yield
            return
        loop = asyncio.get_running_loop()
        with last_wish(partial(loop.call_soon_threadsafe, lambda: spawn(self.leave()))):
            yield
        if self._leaving:  # the learners were through before their last checkpoint
            interrupt()

    async def leave(self) -> None:
        """Interrupts this process once the checkpoint is committed, or there is no time left for it."""
        self._leaving = True
        self._say(f"SIGTERM: ending with a last checkpoint, within {self._grace_s:g} s (a second SIGTERM ends at once)")
        try:
            async with asyncio.timeout(self._grace_s):
                version = await self._ask()
                while version is not None and self._version < version:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._say(f"the last checkpoint was not written within {self._grace_s:g} s (checkpoints.grace_s)")
        self._leaving = False
        interrupt()
