"""`coa ask`: one episode of a model with its tools, tag by tag as it happens, and what it cost.

coa ask --model runs/demo/model "Who is the current owner of Vexon Labs ?"
<plan> find the town first
<wiki_search> Nora Lind
  wiki_search: Nora Lind was born in Amber Falls . (0.01 s)
...
"""

import asyncio
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from coa.errors import UserError
from coa.types import Task
from jobs.commands.command import Demands, Job, local_path
from jobs.recipe.checks import check_asked
from jobs.recipe.findings import Findings
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of
from jobs.run.agent_file import as_trained, fill_in_names
from jobs.run.console import Console


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("question", metavar="QUESTION", help="the question, in quotes")
    parser.add_argument("--model", type=local_path, required=True, help="model directory, Hugging Face layout")
    parser.add_argument("--profile", help="profile of the agent (default: the profile that the model was trained on)")
    parser.add_argument("--grammar", choices=("lenient", "enforce"), help="enforce: only correct tags can be sampled")
    parser.add_argument("--out", type=local_path, default=Path("runs/ask"), help="folder of the logs (%(default)s)")


def check(
    config: Recipe,
    *,
    question: str,
    model: Path,
    profile: str | None,
    grammar: str | None,
    out: Path,
    overrides: Sequence[str] = (),
) -> Findings:
    if not question.strip():
        raise UserError("the question is empty")
    config, profile = settings_of(config, model, profile, grammar, out, overrides)
    task = Task(id="the question", question=question, answers=(), profile=profile, family="")
    return check_asked(model, task, config)


def run(
    config: Recipe,
    console: Console,
    *,
    question: str,
    model: Path,
    profile: str | None,
    grammar: str | None,
    out: Path,
    overrides: Sequence[str] = (),
) -> None:
    from jobs.commands.ask.episode import ask_model

    config, profile = settings_of(config, model, profile, grammar, out, overrides)
    asyncio.run(ask_model(config, console, model, question, profile))


def settings_of(
    config: Recipe, model: Path, profile: str | None, grammar: str | None, out: Path, overrides: Sequence[str]
) -> tuple[Recipe, str]:
    """The settings of the model's training, changed by those of the command line, and the agent's profile."""
    chosen = [f"agent.grammar={grammar}"] if grammar else []
    config = as_trained(config, model, out, (*overrides, *chosen))
    return config, profile or fill_in_names(config, model, world_of(config)).profile


def demands(config: Recipe) -> Demands:
    return {}  # one process, without Ray


COMMAND = Job(
    name="ask",
    check=check,
    run=run,
    arguments=arguments,
    demands=demands,
    of_model=True,
    alone=False,  # it writes nothing but a log
    asks=False,  # its one episode finds out
)
