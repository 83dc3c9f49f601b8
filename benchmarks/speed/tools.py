"""The encyclopedia of the tiny world with a latency.

The file that COA_BENCH_TOOLS names says how long a call takes: {"median_s": 0.3, "p99_s": 3.0, "seed": 0}, log-normal.
"""

import asyncio
import json
import os
from pathlib import Path
from random import Random

from coa.demo import World, WorldConfig
from coa.planning.workload import Latency
from coa.tools.base import ToolCall
from coa.tools.search.wiki import TitleLookup

VARIABLE = "COA_BENCH_TOOLS"
EXTENSION = "benchmarks.speed.extension"


class SlowLookup:
    def __init__(self) -> None:
        told = json.loads(Path(os.environ[VARIABLE]).read_text())
        self._latency, self._random = Latency(told["median_s"], told["p99_s"]), Random(told["seed"])
        self._lookup = TitleLookup(World(WorldConfig()).wiki_pages)

    def key(self, call: ToolCall) -> None:
        """None: each call takes its own time."""

    async def __call__(self, call: ToolCall) -> str:
        seconds = self._latency.draw(self._random)
        if seconds > 0:
            await asyncio.sleep(seconds)
        return await self._lookup(call)
