"""The extension that adds the world: `tasks.world: ablated`, `world.without: [plan]`."""

from coa.tasks.worlds import WORLDS

WORLDS.register_lazily("ablated", "benchmarks.ablations.agents:Ablated")
