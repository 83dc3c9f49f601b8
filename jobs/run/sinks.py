"""The sinks of a run's records besides `metrics.jsonl`: gauges of Ray, and wandb."""

from pathlib import Path

from omegaconf import OmegaConf

from cluster.gauges import RayGauges
from coa.reporting.metrics import Sink
from coa.reporting.wandb_sink import WandbMode, WandbSink, mode_of
from jobs.recipe.schema import Recipe
from jobs.run.console import Console


def open_sinks(config: Recipe, folder: Path, console: Console) -> list[Sink]:
    """Opens the sinks of a run, without those that fail; Ray must be running."""
    sinks: list[Sink] = []
    console.boundary.attempt(RayGauges.NAME, lambda: sinks.append(RayGauges(folder.name)))
    mode, why = mode_of(config.wandb)
    if why:
        console.say(f"wandb: {why}")
    if mode is not WandbMode.disabled:
        recipe = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
        assert isinstance(recipe, dict)
        plain = {str(key): value for key, value in recipe.items()}
        wandb = WandbSink(folder, config.wandb, mode, recipe=plain, say=console.say, boundary=console.boundary)
        sinks.append(wandb)
    return sinks
