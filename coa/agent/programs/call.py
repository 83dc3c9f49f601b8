"""Runs a coroutine function as an agent's program: `python -m coa.agent.programs.call MODULE:FUNCTION`.

The task comes at standard input, as JSON; what the function returns is the whole standard output. What it prints goes
to standard error.
"""

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Awaitable, Callable
from operator import attrgetter

Run = Callable[[dict[str, str], str, str], Awaitable[object]]
"""run(task, base_url, key): the answer."""


def function_of(name: str) -> Run:
    """The function MODULE:FUNCTION; raises ImportError or AttributeError."""
    module, _, function = name.partition(":")
    return attrgetter(function)(importlib.import_module(module))


def main(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    run = function_of(name)
    task = json.load(sys.stdin)

    async def answer() -> object:
        return await run(task, os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])

    found = asyncio.run(answer())
    with answers:
        answers.write("" if found is None else str(found))


if __name__ == "__main__":
    main(sys.argv[1])
