"""`coa verify`: what became of every attempt at a task in a run's RL stage, and whether its steps can be repeated.

coa verify runs/demo                     counts the attempts; none is missing or counted twice
coa verify runs/demo --replay            trains the recorded batches again, and compares the results bit for bit
coa verify runs/demo --replay 20:25      from the newest kept checkpoint before step 20, to step 25
"""

import re
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cluster.resources import learner_demands
from coa.errors import InfrastructureError, UserError
from coa.learning.accounts import OPEN, SPARE, TRAINED, Accounts, Attempt, delay, fold, length_bucket
from coa.storage.jsonl import read_lines
from jobs.commands.command import Command, local_path
from jobs.run.console import Console, open_console
from jobs.run.run_dir import RunDir, storage_of
from jobs.run.session import in_session
from jobs.stages.reinforcement.ledger import FILE

FAULTS_SHOWN = 20


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", type=local_path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--replay",
        nargs="?",
        type=steps,
        const=(None, None),
        metavar="A:B",
        help="train the recorded batches again, all or from step A to B (also A: or :B), and compare",
    )


def steps(text: str) -> tuple[int | None, int | None]:
    if not re.fullmatch(r"\d*:\d*", text):
        raise ArgumentTypeError(f"{text} is no range of steps: write A:B, and the run's folder before --replay")
    first, _, last = text.partition(":")
    return int(first) if first else None, int(last) if last else None


def run(run_dir: Path, replay: tuple[int | None, int | None] | None) -> int:
    """Returns 1 if the accounts don't balance, or at the first step that comes out otherwise."""
    return check_accounts(run_dir) if replay is None else train_again(run_dir, *replay)


def check_accounts(run_dir: Path) -> int:
    """Returns 1 if the accounts don't balance, and prints the faults; raises UserError for a run without a ledger."""
    from jobs.stages.reinforcement.replay import kept_checkpoints
    from jobs.stages.reinforcement.rl_stats import STAGE

    path = run_dir / FILE
    if not path.exists():
        raise UserError(f"{path}: no such file: `coa rl` writes it")
    # Read before the ledger, which has the batches of a checkpoint before there is one.
    kept = kept_checkpoints(storage_of(run_dir).below(STAGE))
    try:
        accounts = fold(read_lines(path))
        accounts.acknowledge(max(kept, default=0))
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not a ledger: {error!r}") from error
    console = Console(sys.stdout, sys.stderr)
    show(accounts, console)
    for fault in accounts.faults[:FAULTS_SHOWN]:
        console.say(f"{path}, {fault}")
    if accounts.faults:
        console.say(f"the ledger does not balance: {len(accounts.faults)} faults")
    return bool(accounts.faults)


def show(accounts: Accounts, console: Console) -> None:
    [total] = accounts.balance().values() or [Counter()]
    reasons = reasons_of(total)
    dropped = "".join(f", {reason} {total[reason]}" for reason in reasons).removeprefix(", ")
    count = sum(total[reason] for reason in reasons)
    console.say(
        f"issued {total.total()} = trained {total['trained']} + dropped {count}{f' ({dropped})' if dropped else ''}"
        f" + open {open_in(total)}"
    )
    upto = f"the last known checkpoint is at version {accounts.acknowledged}"
    console.say(
        f"learners started {accounts.starts} times; {upto}; {'finished' if accounts.finished else 'not finished'}"
    )
    following, *flying = accounts.cursor()
    console.say(f"{following} tasks were issued; {len(flying)} of them are under way, or will be issued again")
    by_length = accounts.grouped(lambda one: -1 if one.tokens is None else length_bucket(one.tokens))
    by_calls = accounts.grouped(lambda one: -1 if one.calls is None else one.calls)
    table(console, "by tokens of the longest episode", accounts, by_length, reasons, "up to {}")
    table(console, "by the most tool calls of an episode", accounts, by_calls, reasons, "{}")


def table(
    console: Console,
    title: str,
    accounts: Accounts,
    rows: Mapping[int, Sequence[Attempt]],
    reasons: list[str],
    label: str,
) -> None:
    """A row for each key, rising; -1 is what was not played to an end. What depends on the key biases what is learnt:
    `lost`, the share that failures and rollbacks took, `again`, the attempts whose tasks are issued again, and `delay`,
    the versions between admission and training."""
    cells: list[list[Any]] = []
    for key, attempts in sorted(rows.items()):
        row = Counter(map(accounts.state, attempts))
        lost = sum(row[reason] for reason in reasons if reason not in ("no_variance", SPARE)) / row.total()
        again, waited = sum(attempt.again for attempt in attempts), delay(attempts)
        name = "not played" if key < 0 else label.format(key)
        amounts = [row[reason] for reason in reasons]
        last = [open_in(row), f"{lost:.1%}", again, "-" if waited is None else f"{waited:.2f}"]
        cells.append([name, row.total(), row["trained"], *amounts, *last])
    names = [reason.replace("_", " ") for reason in reasons]
    console.table(title, ["", "issued", "trained", *names, "open", "lost", "again", "delay"], cells)


def reasons_of(row: Counter[str]) -> list[str]:
    return [name for name, _ in row.most_common() if name not in (*OPEN, TRAINED)]


def open_in(row: Counter[str]) -> int:
    return sum(row[state] for state in OPEN)


def train_again(run_dir: Path, first: int | None, last: int | None) -> int:
    """Returns 1 at the first difference, and prints its step; raises UserError for a run without recorded batches."""
    from jobs.stages.reinforcement.replay import plan_replay, recipe_of, replay

    config = recipe_of(run_dir)
    with open_console(run_dir / "logs" / "replay.log") as console:
        plan = plan_replay(RunDir(config, console), first, last)

        async def body(run: RunDir) -> None:
            await replay(run, plan)

        try:
            plan.check()
            in_session(config, console, body, demands=[learner_demands(config.placement, config.rl.learner.ranks)])
        except InfrastructureError as error:
            console.say(f"{error}")
            return 1
    return 0


COMMAND = Command(name="verify", run=run, arguments=arguments)
