"""The host of an agent's function (`coa.agent.programs.host`), as its caller has it."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import IO

from actors.gateway import process
from actors.gateway.process import Exited, end_of
from coa.agent.programs.host import READY
from coa.types import Task

GONE = -9
"""Status of a function whose host has died."""


class FunctionHost:
    """Runs a function in forks of a process that has imported what it needs."""

    def __init__(self, function: str) -> None:
        """function: MODULE:FUNCTION."""
        self._function = function
        self._orders: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._ordering = asyncio.Lock()

    async def run(self, task: Task, variables: Mapping[str, str]) -> Exited:
        """Runs the function to its end. If this is cancelled, its process and those that it has started are ended; they
        are ended after it, too."""
        order = {"variables": dict(variables), "task": {"id": task.id, "question": task.question}}
        with ExitStack() as held:
            given, answer = held.enter_context(_file()), held.enter_context(_file())
            given.write(json.dumps(order).encode())
            given.seek(0)
            (log, log_there), (status, status_there) = socket.socketpair(), socket.socketpair()
            held.enter_context(log)
            held.enter_context(status)
            with log_there, status_there:
                there = (given.fileno(), answer.fileno(), log_there.fileno(), status_there.fileno())
                if not await self._send(there):
                    return Exited(GONE, "", "the process that imports what it needs has ended")
            words, log_writer = await asyncio.open_connection(sock=log)
            held.callback(log_writer.close)
            saying = asyncio.ensure_future(end_of(words))
            held.callback(saying.cancel)
            ending, status_writer = await asyncio.open_connection(sock=status)
            try:
                ended = await ending.read()
            finally:
                status_writer.close()  # if it has not ended, its host ends it now
            if not ended:
                return Exited(GONE, "", "the process from which it was forked has ended")
            said = await saying
            answer.seek(max(0, os.fstat(answer.fileno()).st_size - process.MOST_BYTES))
            return Exited(int(ended), answer.read().decode(errors="replace").strip(), said)

    async def _send(self, descriptors: Sequence[int]) -> bool:
        """Sends an order to the host, which is started if there is none; returns whether there is one now."""
        async with self._ordering:
            if self._orders is None and not await self._start():
                return False
            assert self._orders is not None, "it has been started"
            try:
                while True:
                    try:
                        socket.send_fds(self._orders, [b"o"], descriptors)
                        return True
                    except BlockingIOError:
                        await _writable(self._orders)
            except (BrokenPipeError, ConnectionResetError):
                await self._stop()
                return False

    async def _start(self) -> bool:
        orders, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
        orders.setblocking(False)
        words = (sys.executable, "-m", "coa.agent.programs.host", self._function, str(there.fileno()))
        nowhere = asyncio.subprocess.DEVNULL
        with there:
            self._process = await asyncio.create_subprocess_exec(
                *words, stdin=nowhere, stdout=nowhere, pass_fds=(there.fileno(),), start_new_session=True
            )
        self._orders = orders
        try:
            # If this is cancelled, the next order waits in the socket until the host is ready.
            ready = await asyncio.get_running_loop().sock_recv(orders, len(READY))
        except ConnectionResetError:
            ready = b""
        if not ready:
            await self._stop()
        return bool(ready)

    async def close(self) -> None:
        """Ends the host and what it runs."""
        async with self._ordering:
            if self._orders is not None:
                await self._stop()

    async def _stop(self) -> None:
        assert self._process is not None, "it has been started"
        if self._orders is not None:
            self._orders.close()
            self._orders = None
        await self._process.wait()


async def _writable(orders: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()
    loop.add_writer(orders, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        loop.remove_writer(orders)


def _file() -> IO[bytes]:
    """A file in memory."""
    return open(os.memfd_create("episode"), "w+b")
