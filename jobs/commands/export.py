"""`coa export`: writes a run's distilled data in the format of another trainer.

runs/x/data/*.parquet -> OUT/ for TRL's SFTTrainer, for LLaMA-Factory, or as the published AFM sets are
"""

from argparse import ArgumentParser
from pathlib import Path

from coa.agent.episode import AgentConfig
from coa.config import from_plain, read
from coa.distill.dataset.exports import FORMATS
from coa.distill.dataset.shards import shard_paths
from coa.errors import UserError
from jobs.commands.command import Command, local_path

DATA = "data"


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--run", type=local_path, required=True, help="run directory")
    parser.add_argument("--format", required=True, help="trl, llamafactory or alpaca")
    parser.add_argument("--out", type=local_path, required=True, help="a new or empty folder")


def check(run: Path, format: str, out: Path) -> None:
    """Raises UserError, before anything is written, for an unknown format, a run without data, or a folder in use."""
    FORMATS.find(format)
    if not (run / "config.yaml").exists() or not shard_paths(run / DATA):
        raise UserError(f"{run}: nothing is distilled there yet: run `coa distill` first")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder: an export needs a new or empty one")


def run(run: Path, format: str, out: Path) -> None:
    check(run, format, out)
    path = run / "config.yaml"
    # Only the recipe's section `agent`, which defines the prompt: reading the rest would load the whole system.
    recipe = read(path)
    agent = from_plain(AgentConfig, recipe.get("agent", {}) if isinstance(recipe, dict) else recipe, str(path))
    chosen = FORMATS[format]
    rows = chosen.export(run / DATA, out, instructed=agent.instructed, formats=agent.formats)
    print(f"{rows} rows in {out}\n{chosen.use.format(out=out)}")
    if chosen.warning:
        print(f"warning: {chosen.warning}")


COMMAND = Command(name="export", run=run, arguments=arguments)
