"""Adds and removes engines during RL, if `placement` gives a range.

loop, pool ── readings ──► EngineController ── engines ──► pool: adds, or drains and retires
"""

import asyncio
from collections.abc import Callable

from cluster.pool import EnginePool
from coa.learning.scaling import EngineController, Fleet, Reading
from coa.learning.window import Window
from jobs.recipe.schema import Recipe
from jobs.stages.engines import places_of

LOOK_EVERY_S = 1.0


class ElasticEngines:
    """Observes the loop and its pool, and carries out the controller's decisions."""

    def __init__(self, pool: EnginePool, config: Recipe, say: Callable[[str], None]) -> None:
        least, most = config.placement.engine_range
        at_once = config.engine.max_concurrent
        fleet = Fleet(least=least, most=most, places=places_of(config), at_once=at_once)
        self._pool, self._config, self._say = pool, config, say
        self._controller = EngineController(config.pool.scaling, fleet, pool.size)

    async def watch(self, window: Window, steps: Callable[[], int]) -> None:
        """Resizes the pool as the controller decides, until cancelled. steps: number of batches trained so far."""
        while True:
            decision = self._controller.look(self._reading(window, steps()))
            if decision.why:
                self._say(f"{decision.why}: {decision.engines} rollout engine{'s' * (decision.engines != 1)} wanted")
                self._pool.resize(decision.engines, self._config.pool.scaling.handover_s)
            await asyncio.sleep(LOOK_EVERY_S)

    def _reading(self, window: Window, steps: int) -> Reading:
        found = self._pool.occupancy
        return Reading(
            at=asyncio.get_running_loop().time(),
            waits=window.version <= steps < self._config.rl.steps,
            for_old=window.waits_for_old(),
            steps=steps,
            serving=found.serving,
            joining=found.joining,
            playing=found.playing,
            queued=found.queued,
            sampling=found.sampling,
            kv_use=found.kv_use,
            admissible=window.room() * self._config.rl.group,
        )


def elastic_engines(pool: EnginePool, config: Recipe, say: Callable[[str], None]) -> ElasticEngines | None:
    """The controller of the recipe's engines; None if their number is fixed."""
    least, most = config.placement.engine_range
    return ElasticEngines(pool, config, say) if least < most else None
