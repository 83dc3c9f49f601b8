"""How much memory of the host a program in the sandbox holds, by each way that the tests know.

    python -m benchmarks.sandbox_memory            on a quiet machine: it measures the whole machine's free memory
    python -m benchmarks.sandbox_memory --table    writes the recorded figures into docs/security.md

Each program tries to hold 400 MiB in a sandbox with memory_mib=128 and files_mib=4, and then waits.
"""

import argparse
import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median

from benchmarks.harness import RESULTS, ROOT, report
from benchmarks.table import filled
from coa.errors import ToolDown
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig
from tests.support.sandbox_limits import CALL, WAYS

CONFIG = SandboxConfig(memory_mib=128, files_mib=4, cpu_s=10, wall_s=30.0)
EXCESS_MIB = 16
PROGRAM = "{way}\nhold(some, 400)\nimport time; time.sleep(1)"
NOTHING = f"{CALL}\nimport time; time.sleep(1)"
LOOK_S = 0.01
DOCUMENT = ROOT / "docs" / "security.md"
BEGIN = "<!-- table: python -m benchmarks.sandbox_memory --table -->"


def available_mib() -> float:
    """Memory that the machine could give to a new program."""
    [line] = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable")]
    return int(line.split()[1]) / 1024


async def held_mib(sandbox: Sandbox, program: str) -> float:
    """By how much it falls at most while the program runs."""
    before = [available_mib() for _ in range(20) if await asyncio.sleep(LOOK_S) is None]
    running, least = asyncio.ensure_future(sandbox.execute(program, "")), median(before)
    while not running.done():
        least = min(least, available_mib())
        await asyncio.sleep(LOOK_S)
    with suppress(ToolDown):
        await running
    return median(before) - least


def figure(way: str) -> str:
    return re.sub(r"\W+", "_", way.lower()) + "_mib"


async def measure() -> dict[str, float]:
    found: dict[str, float] = {}
    sandbox = Sandbox(CONFIG)
    try:
        await sandbox.execute(NOTHING, "")
        for way, text in {"an idle program": "", **WAYS}.items():
            program = PROGRAM.format(way=CALL + text) if text else NOTHING
            found[figure(way)] = round(max([await held_mib(sandbox, program) for _ in range(2)]), 1)
            print(f"{way}: {found[figure(way)]:.0f} MiB", flush=True)
            await asyncio.sleep(1)
    finally:
        await sandbox.close()
    return found


def table(figures: Mapping[str, float]) -> str:
    rows = ["| kind of memory | MiB of the host |", "|---|---|"]
    rows += [f"| {way} | {figures[figure(way)]:.0f} |" for way in ("an idle program", *WAYS)]
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", action="store_true", help="only write what was recorded into the document")
    if parser.parse_args().table:
        recorded = json.loads((RESULTS / "sandbox_memory.json").read_text())
        DOCUMENT.write_text(filled(DOCUMENT.read_text(), table(recorded["figures"]), BEGIN))
        return
    found = asyncio.run(measure())
    report("sandbox_memory", found, dict.fromkeys(found, f"<= {CONFIG.memory_mib + EXCESS_MIB}"))


if __name__ == "__main__":
    main()
