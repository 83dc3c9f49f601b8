"""The cost of the sandbox: a small program in a bare interpreter, in a cold sandbox and in a warm one.

    .venv/bin/python -m benchmarks.sandbox

The bare interpreter has the same flags as the sandbox's and is started in the same way, without any limits. `crowded`:
beside processes that sleep and wake often, as the threads of an engine do.
"""

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.harness import in_turns, median_ratio, report
from coa.tools.sandbox.command import FLAGS, base_python
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig

PROGRAM = "print(sum(map(int, input().split())))\n"
STDIN, STDOUT = "1 2 3\n", "6\n"
ROUNDS, CONCURRENT, BATCH, BATCHES = 100, 16, 160, 8
WAKERS, CROWDED = 10, 4
WAKER = """\
import time
while True:
    end = time.process_time() + 0.0002
    while time.process_time() < end: pass
    time.sleep(0.0005)
"""
TARGETS = {
    "cold_latency_ratio": "<= 2.2",
    "cold_throughput_ratio": ">= 0.45",
    "warm_latency_ratio": "<= 0.8",
    "warm_throughput_ratio": ">= 1.3",
    "crowded_throughput_ratio": ">= 0.7",
}
Side = Callable[[], Awaitable[None]]


async def bare(path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(base_python(), *FLAGS, str(path)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # as in a sandbox: on a busy machine each session gets its share of the processors
    )
    stdout, _ = await process.communicate(STDIN.encode())
    assert stdout == STDOUT.encode()


async def boxed(sandbox: Sandbox) -> None:
    ended = await sandbox.execute(PROGRAM, STDIN)
    assert ended.stdout == STDOUT


async def batch(side: Side) -> None:
    """BATCH runs, CONCURRENT at a time."""
    left = iter(range(BATCH))

    async def worker() -> None:
        for _ in left:
            await side()

    await asyncio.gather(*(worker() for _ in range(CONCURRENT)))


@contextmanager
def crowd() -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(WAKERS):
            waker = stack.enter_context(subprocess.Popen([sys.executable, "-c", WAKER]))
            stack.callback(waker.kill)
        yield


def main() -> None:
    with TemporaryDirectory() as folder, asyncio.Runner() as runner:
        path = Path(folder, "main.py")
        path.write_text(PROGRAM)
        cold, warm = (Sandbox(SandboxConfig(warm=warm)) for warm in (False, True))
        sides: dict[str, Side] = {
            "bare": partial(bare, path),
            "cold": partial(boxed, cold),
            "warm": partial(boxed, warm),
        }
        singles = {name: partial(_run, runner, side) for name, side in sides.items()}
        batches = {name: partial(_run, runner, partial(batch, side)) for name, side in sides.items()}
        in_turns(singles, 3)  # the first ones start the zygote and read the interpreter from the disk
        alone, together = in_turns(singles, ROUNDS), in_turns(batches, BATCHES)
        with crowd():
            crowded = in_turns({name: batches[name] for name in ("bare", "warm")}, CROWDED)
        runner.run(warm.close())

    figures: dict[str, float] = {}
    for name in ("cold", "warm"):
        figures[f"{name}_latency_ratio"] = round(median_ratio(alone[name], alone["bare"]), 3)
        figures[f"{name}_throughput_ratio"] = round(median_ratio(together["bare"], together[name]), 3)
    figures["crowded_throughput_ratio"] = round(median_ratio(crowded["bare"], crowded["warm"]), 3)
    for name in sides:
        figures[f"{name}_ms"] = round(median(alone[name]) * 1e3, 2)
        figures[f"{name}_per_s"] = round(BATCH / median(together[name]), 1)
    report("sandbox", figures, TARGETS)


def _run(runner: asyncio.Runner, side: Side) -> None:
    async def wait() -> None:
        await side()

    runner.run(wait())


if __name__ == "__main__":
    main()
