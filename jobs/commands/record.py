"""`coa record`: forwards calls of other agent systems to a model endpoint, and records requests and replies.

coa record --upstream http://127.0.0.1:8000/v1 --out recorded
OPENAI_BASE_URL=http://127.0.0.1:8700/session/run-1/v1 python their_agent.py
coa import --format recorded --runs recorded --tasks tasks.jsonl --out imported
"""

from __future__ import annotations

import asyncio
import signal
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.commands.command import Command, local_path, positive

if TYPE_CHECKING:
    from coa.distill.sources.recorder import RecorderConfig

PORT = 8700
"""`coa doctor` looks at it, and needs no recorder."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--upstream", required=True, help="the model's endpoint, such as http://127.0.0.1:8000/v1")
    parser.add_argument("--out", type=local_path, required=True, help="folder of the recorded sessions")
    parser.add_argument("--host", default="127.0.0.1", help="address to serve at")
    parser.add_argument("--port", type=positive, default=PORT)
    parser.add_argument("--key-env", help="environment variable with the endpoint's key, instead of the caller's")


def run(
    upstream: str,
    out: Path,
    *,
    host: str = "127.0.0.1",
    port: int = PORT,
    key_env: str | None = None,
    say: Callable[[str], None] = print,
) -> None:
    """Serves until it is interrupted. Raises UserError for an invalid address, port or key."""
    from coa.distill.sources.recorder import RecorderConfig

    asyncio.run(_serve(RecorderConfig(upstream=upstream, folder=out, key_env=key_env), host, port, say))


async def _serve(config: RecorderConfig, host: str, port: int, say: Callable[[str], None]) -> None:
    from coa.distill.sources.recorder import serving

    stop = asyncio.Event()
    async with serving(config, host, port, say) as url:
        for end in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(end, stop.set)
        where = f"{url}/session/NAME/v1 (Anthropic's clients: without /v1)"
        say(f"recording in {config.folder}: point an agent at {where}, one name for each run")
        await stop.wait()


COMMAND = Command(name="record", run=run, arguments=arguments)
