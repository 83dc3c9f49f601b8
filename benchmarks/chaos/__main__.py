"""Kills processes during a recipe's RL stage, and checks that results and ledger stay correct.

    python -m benchmarks.chaos --recipe tiny --kills 30 --seed 0
    python -m benchmarks.chaos --recipe tiny --from-run runs/demo --kills 4 --kind engine --kind core

`benchmarks.chaos.seeds` plays several seeds, and writes the table of docs/performance.md.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.chaos.course import kinds_of
from benchmarks.chaos.findings import HEADER, Journal, result, shown, table
from benchmarks.chaos.nodes import nodes
from benchmarks.chaos.plan import PAUSE_S, draw
from benchmarks.chaos.rounds import SETTINGS, Round, check_source, lacking, make_source, prepare
from benchmarks.chaos.run import Chaos
from coa.config import load
from coa.errors import InfrastructureError, UserError
from coa.reporting.readable import percent
from coa.storage.files import write_atomically
from jobs.commands.command import local_path, positive
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console

STEPS = 60
"""Of a round: room for some five kills, and a policy that has not learnt all that it will."""
MINUTES = 40
FILE, RESULT, PLAN, SOURCE = "chaos.jsonl", "result.json", "plan.json", "source"


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--recipe", required=True, help="name of a recipe (such as tiny), or a YAML file")
    parser.add_argument(
        "--from-run",
        type=local_path,
        help="a finished run, whose fine-tuned model is trained (the recipe's run_dir; if that is not finished, what "
        "precedes reinforcement is trained first)",
    )
    parser.add_argument("--kills", type=positive, default=30, help="number of kills (30)")
    parser.add_argument("--seed", type=int, default=0, help="determines kinds, order and victims of the kills")
    parser.add_argument("--kind", dest="kinds", action="append", default=[], help="only kills of this kind; repeatable")
    parser.add_argument("--steps", type=positive, default=STEPS, help=f"steps of a round ({STEPS})")
    parser.add_argument(
        "--pause",
        type=float,
        nargs=2,
        metavar=("LEAST", "MOST"),
        default=PAUSE_S,
        help=f"seconds from a recovery to the next kill ({PAUSE_S[0]:g} {PAUSE_S[1]:g})",
    )
    parser.add_argument(
        "--minutes",
        type=positive,
        default=MINUTES,
        help=f"minutes of rounds with kills after which no further kill is made ({MINUTES})",
    )
    parser.add_argument(
        "--undisturbed", type=local_path, help="folder of a chaos run with the same settings, for its undisturbed round"
    )
    parser.add_argument(
        "--out", type=local_path, help="folder of the rounds (runs/chaos-SEED); the same folder resumes"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe")
    return parser.parse_intermixed_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """The exit status: 1 if a check failed, which is printed; 2 for invalid arguments."""
    try:
        return run(parsed(words))
    except UserError as error:
        print(f"benchmarks.chaos: {error}", file=sys.stderr)
        return 2


def run(asked: argparse.Namespace) -> int:
    """Returns 1 if a check failed, and prints which; raises UserError for invalid arguments."""
    try:
        strikes = draw(asked.kills, asked.seed, kinds_of(asked.kinds), pause_s=asked.pause)
    except ValueError as error:
        raise UserError(f"--kind: {error}") from None
    if asked.from_run is not None:
        check_source(asked.from_run)
    settings = (*SETTINGS, f"rl.steps={asked.steps}", *asked.overrides)
    config = load(Recipe, find_recipe(asked.recipe), settings)
    console, folder = Console(sys.stdout, sys.stderr), (asked.out or Path(f"runs/chaos-{asked.seed}")).resolve()
    before = None if asked.undisturbed is None else verdict_of(asked.undisturbed, list(settings))
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [strike.kind.value for strike in strikes]
    check_plan(folder, {"strikes": kinds, "settings": list(settings), "seed": asked.seed})
    journal, failed = Journal(folder / FILE), ""
    if before is not None and 0 not in journal.rounds:
        journal.finished(0, before)
    train = [sys.executable, "-m", "jobs.cli", "train", "--recipe", asked.recipe]
    try:
        source = asked.from_run or source_of(config, folder, [*train, *asked.overrides], console)
        play(
            config,
            [*train, *settings],
            journal,
            folder,
            source,
            asked.minutes,
            strikes=journal.left(strikes),
            console=console,
        )
    except InfrastructureError as error:
        failed = str(error)
    found = result(strikes, journal, seed=asked.seed, staleness=config.rl.window.max_staleness)
    found["wrong"] = [*([failed] if failed else []), *found["wrong"]]
    show(journal, found, console)
    (folder / RESULT).write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found))
    return bool(found["wrong"])


def source_of(config: Recipe, folder: Path, train: list[str], console: Console) -> Path:
    """The run that rounds begin with where none is named: the recipe's own if it is finished, else one in `folder`,
    which is trained now. The same one is taken at each resumption."""
    own, made = Path(config.run_dir), folder / SOURCE
    if lacking(own) or made.exists():
        own = made
        make_source(made, train)
    console.say(f"rounds begin with the fine-tuned model of {own}")
    return own


def play(
    config: Recipe,
    words: list[str],
    journal: Journal,
    folder: Path,
    source: Path,
    minutes: int,
    *,
    strikes: tuple[Any, ...],
    console: Console,
) -> None:
    """Plays the undisturbed round, and rounds until no strike or no time is left; finished rounds are not repeated."""
    with nodes() as cluster:
        chaos = Chaos(cluster, journal, console.say)
        environment = {**os.environ, "RAY_ADDRESS": cluster.address}
        number = 0
        while True:
            place = folder / (f"round-{number}" if number else "undisturbed")
            begun = number == 0 or place.exists()
            if not begun and not (strikes and journal.seconds < 60 * minutes):
                return
            if number not in journal.rounds:
                round_, began = Round(place, words, environment), time.monotonic()
                if number:
                    chaos.deadline = began + 60 * minutes - journal.seconds
                prepare(round_.folder, source)
                with console.stage(f"round {number}" if number else "undisturbed", config.rl.steps) as stage:
                    try:
                        left = chaos.play(number, round_, strikes if number else (), stage)
                    finally:
                        round_.stop()
                        if number:
                            journal.took(time.monotonic() - began)
                strikes = left if number else strikes
                verdict = round_.verdict()
                journal.finished(number, verdict)
                console.say(f"pass@1 {percent(verdict['pass_at_1'])}, {len(verdict['faults'])} faults in the ledger")
            number += 1


def check_plan(folder: Path, plan: dict[str, Any]) -> None:
    """Raises UserError if the folder holds a chaos run with other settings."""
    path = folder / PLAN
    if not path.exists():
        write_atomically(path, json.dumps(plan, indent=1))
    elif json.loads(path.read_text()) != plan:
        raise UserError(f"{folder} holds a chaos run with other settings: choose another --out")


def verdict_of(folder: Path, settings: list[str]) -> dict[str, Any]:
    """The verdict of another chaos run's undisturbed round; raises UserError if there is none with these settings."""
    plan, rounds = folder / PLAN, Journal(folder / FILE).rounds
    if 0 not in rounds or not plan.exists():
        raise UserError(f"--undisturbed {folder}: no chaos run with a finished first round")
    if json.loads(plan.read_text())["settings"] != settings:
        raise UserError(f"--undisturbed {folder}: a chaos run with other settings")
    return rounds[0]


def show(journal: Journal, found: dict[str, Any], console: Console) -> None:
    console.table("time to recover, from the strike to a step with everything there again", HEADER, table(journal.hits))
    idle = found["idle_victims"]
    console.say(f"{found['kills']} kills in {found['rounds']} rounds, {found['took_s'] / 60:.0f} minutes")
    console.say(f"idle victims: {shown(idle) or 'none'}")
    if found["pass_at_1"] is not None and found["pass_at_1_undisturbed"] is not None:
        console.say(f"held-out pass@1 {found['pass_at_1']:.3f}, undisturbed {found['pass_at_1_undisturbed']:.3f}")
    for line in found["wrong"]:
        console.say(f"wrong: {line}")


if __name__ == "__main__":
    sys.exit(main())
