"""Nodes that are about to be shut down: as soon as this is known, their engines are drained, and others are started
elsewhere.

Ray is told that a node will be shut down, by its autoscaler after a cloud's notice of preemption, or by an operator
with `ray drain-node`. From then on Ray places nothing new there, and knows until when the node stays.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping

from cluster.pool import EnginePool

LOOK_EVERY_S = 2.0
"""A look is one message to the head."""
MARGIN_S = 10.0
"""Before the node goes, in which what engines still play is handed over."""


def leaving_nodes() -> dict[str, float]:
    """Ray's ids of nodes that are being drained, with the seconds that each has left; infinite where nobody said."""
    from ray._private.state import state  # there is no public interface; `ray drain-node` is its other end

    now_ms = time.time() * 1000
    deadlines = state.get_draining_nodes().items()
    return {node: (at_ms - now_ms) / 1000 if at_ms else math.inf for node, at_ms in deadlines}


async def heed(
    pool: EnginePool,
    handover_s: float,
    say: Callable[[str], None],
    look: Callable[[], Mapping[str, float]] = leaving_nodes,
) -> None:
    """Looks for such nodes until it is cancelled. handover_s: for how long their engines go on with their episodes,
    where the node has no deadline; else they do until shortly before it."""
    while True:
        for node, left_s in (await asyncio.to_thread(look)).items():
            stay_s = handover_s if math.isinf(left_s) else max(0.0, left_s - MARGIN_S)
            if engines := pool.evacuate(node, stay_s):
                say(
                    f"node {node[:8]} is about to be shut down: {engines} rollout engine{'s' * (engines != 1)} replaced"
                )
        await asyncio.sleep(LOOK_EVERY_S)
