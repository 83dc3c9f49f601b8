"""Names services that stay away: actors that Ray starts again, but that do not come back, or have stopped."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from ray.exceptions import RayError

from actors.handles import Handle
from cluster.engine_actor import why_of
from coa.errors import InfrastructureError

LOOK_EVERY_S = 5.0
"""Seconds between two questions to a service."""
AWAY_S = 30.0
"""Seconds without an answer after which a service is named."""
Ask = Callable[[], Awaitable[object]]
"""Asks a service whether it is there; raises RayError, or the service's InfrastructureError, if it is not."""


def ready(handle: Handle) -> Ask:
    """Asks an actor whose methods are coroutines, or that is never busy for long."""
    return handle.__ray_ready__.remote


@asynccontextmanager
async def watched_services(services: Mapping[str, Ask], say: Callable[[str], None]) -> AsyncIterator[None]:
    """Within the context, says which services do not answer for AWAY_S, once each, and when they answer again."""
    watching = [asyncio.ensure_future(watch(name, ask, say)) for name, ask in services.items()]
    try:
        yield
    finally:
        for one in watching:
            one.cancel()
        for ended in await asyncio.gather(*watching, return_exceptions=True):
            if isinstance(ended, Exception):  # a defect; a cancelled one is a BaseException
                raise ended


def watch_in_thread(services: Mapping[str, Ask], say: Callable[[str], None]) -> None:
    """Watches services until this process ends, for code that runs in no event loop of its own."""

    async def all_of_them() -> None:
        await asyncio.gather(*(watch(name, ask, say) for name, ask in services.items()))

    threading.Thread(target=lambda: asyncio.run(all_of_them()), name="services", daemon=True).start()


async def watch(name: str, ask: Ask, say: Callable[[str], None]) -> None:
    """Watches one service, without end."""
    clock = asyncio.get_running_loop().time
    while True:
        began, told = clock(), False
        while why := await _absence(ask):
            if not told and clock() - began >= AWAY_S:
                told = True
                say(f"{name}: no answer for {clock() - began:.0f} s ({why}); what needs it fails or waits")
            await asyncio.sleep(LOOK_EVERY_S)
        if told:
            say(f"{name}: answers again, after {clock() - began:.0f} s")
        await asyncio.sleep(LOOK_EVERY_S)


async def _absence(ask: Ask) -> str:
    """Why a service does not answer; empty if it does."""
    try:
        async with asyncio.timeout(AWAY_S):
            await ask()
    except TimeoutError:
        return "its process is stopped, or has not started"
    except (RayError, InfrastructureError) as error:
        return why_of(error)
    return ""
