"""What the tests of the sandbox share: sandboxes of each kind on a loop of their own, and what is left of them."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from coa.tools.sandbox.run import Ended
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig, outcome
from tests.support.patience import PATIENCE_S

QUICK = SandboxConfig(cpu_s=1, wall_s=PATIENCE_S, memory_mib=256, files_mib=4)
"""Patient where it is the wall clock that counts: the machine may be busy."""


class Box:
    """A sandbox with a loop, for tests that are no coroutines."""

    def __init__(self, config: SandboxConfig, loop: asyncio.Runner) -> None:
        self.config = config
        self.sandbox = Sandbox(config)
        self.loop = loop

    def execute(self, program: str, stdin: str = "") -> Ended:
        return self.loop.run(self.sandbox.execute(program, stdin))

    def output(self, program: str, stdin: str = "", wall_s: float | None = None, cpu_s: int | None = None) -> str:
        """What was printed, and after it what went wrong; with the limits of the configuration where none are given."""
        config = self.config
        limits = replace(config, wall_s=wall_s or config.wall_s, cpu_s=cpu_s or config.cpu_s)
        output = outcome(self.loop.run(self.sandbox.execute(program, stdin, limits)), limits)
        return "\n".join(part for part in (output.printed, output.failure) if part)


@contextmanager
def box(config: SandboxConfig) -> Iterator[Box]:
    with asyncio.Runner() as loop:
        made = Box(config, loop)
        yield made
        loop.run(made.sandbox.close())


def sandboxed(ancestor: int | None = None) -> dict[int, str]:
    """The processes of sandboxes that this process (or `ancestor`) has started, those inside included; without the
    nurseries, which stay for later programs."""
    parents, names = {}, {}
    for process in Path("/proc").glob("[0-9]*"):  # a longer pattern raises for a process that ends meanwhile
        try:
            head, _, tail = (process / "stat").read_text().rpartition(") ")
        except OSError:
            continue
        number, _, name = head.partition(" (")
        if tail[0] != "Z":
            parents[int(number)], names[int(number)] = int(tail.split()[1]), name
    found = {
        n: names[n] for n in parents if parents[n] == (ancestor or os.getpid()) and names[n] in ("bwrap", "prlimit")
    }
    while more := {n: names[n] for n in parents if parents[n] in found and n not in found}:
        found |= more
    return {n: name for n, name in found.items() if name != "nursery"}


def commands_with(mark: bytes) -> list[int]:
    """The processes of this machine whose command line holds a mark, whosever children they are."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found
