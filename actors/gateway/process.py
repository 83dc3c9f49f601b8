"""Runs an agent's command for one episode: its environment, its limits, and what it says."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from coa.types import Task

MOST_BYTES = 1 << 20
"""Bytes that are kept of what a program prints: the last ones."""
CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Exited:
    """A program that has ended."""

    status: int
    """Its exit status; that of a signal is negative."""
    answer: str
    log: str
    """The end of what it wrote to standard error."""


def environment(base: str, key: str) -> dict[str, str]:
    """Environment variables that lead the usual clients to the policy. base: the gateway's address, without a path."""
    return {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": key,
    }


async def run_command(words: Sequence[str], task: Task, variables: Mapping[str, str]) -> Exited:
    """Runs a program to its end. If this is cancelled, the program and the processes that it has started are ended;
    they are ended after it, too."""
    program = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **variables},
        start_new_session=True,
    )
    talking = asyncio.gather(_tell(program.stdin, task.question), end_of(program.stdout), end_of(program.stderr))
    try:
        await _exit_of(program.pid)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        # Nobody holds the pipes any more.
        _, said, log = await talking
        status = await program.wait()
    return Exited(status, _last_line(said), log)


async def _exit_of(pid: int) -> None:
    """Returns when the process has ended, also if others hold its pipes, for which asyncio's own waiting waits."""
    try:
        ended = os.pidfd_open(pid)
    except ProcessLookupError:  # it has ended, and was waited for
        return
    loop = asyncio.get_running_loop()
    exited = loop.create_future()
    loop.add_reader(ended, lambda: exited.done() or exited.set_result(None))
    try:
        await exited
    finally:
        loop.remove_reader(ended)
        os.close(ended)


async def _tell(stream: asyncio.StreamWriter | None, text: str) -> None:
    assert stream is not None, "it is a pipe"
    with suppress(BrokenPipeError, ConnectionResetError):  # the program may not want to know
        stream.write(text.encode())
        await stream.drain()
    stream.close()


async def end_of(stream: asyncio.StreamReader | None) -> str:
    """The last MOST_BYTES of a stream, once it has ended."""
    assert stream is not None, "it is a pipe"
    kept = bytearray()
    while chunk := await stream.read(CHUNK):
        kept += chunk
        del kept[:-MOST_BYTES]
    return kept.decode(errors="replace")


def _last_line(said: str) -> str:
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
