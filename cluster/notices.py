"""Preemption notices: engines on a node that will be shut down are drained, and others are started elsewhere.

Ray learns that a node will be shut down from its autoscaler, after a cloud's preemption notice, or from an operator
with `ray drain-node`. From then on Ray places nothing new on the node, and knows the node's deadline.
"""

import asyncio
import math
import time
from collections.abc import Callable, Mapping

from cluster.pool import EnginePool

LOOK_EVERY_S = 2.0
"""Seconds between two checks; a check is one message to the head."""
MARGIN_S = 10.0
"""Seconds before a node's deadline at which its engines' remaining episodes are moved."""


def leaving_nodes() -> dict[str, float]:
    """Seconds left by Ray's id of each node being drained; infinite without a deadline."""
    from ray._private.state import state  # no public API reads what `ray drain-node` sets

    now_ms = time.time() * 1000
    deadlines = state.get_draining_nodes().items()
    return {node: (at_ms - now_ms) / 1000 if at_ms else math.inf for node, at_ms in deadlines}


async def heed(
    pool: EnginePool,
    handover_s: float,
    say: Callable[[str], None],
    look: Callable[[], Mapping[str, float]] = leaving_nodes,
) -> None:
    """Evacuates draining nodes until it is cancelled. handover_s: seconds for which their engines continue with their
    episodes if the node has no deadline; otherwise they continue until MARGIN_S before the deadline."""
    while True:
        for node, left_s in (await asyncio.to_thread(look)).items():
            stay_s = handover_s if math.isinf(left_s) else max(0.0, left_s - MARGIN_S)
            if engines := pool.evacuate(node, stay_s):
                say(
                    f"node {node[:8]} is about to be shut down: {engines} rollout engine{'s' * (engines != 1)} replaced"
                )
        await asyncio.sleep(LOOK_EVERY_S)
