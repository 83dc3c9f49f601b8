"""`coa ledger`: shows the outcome of every attempt at a task in a run's RL stage, and whether the accounts balance."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.commands.command import Command

if TYPE_CHECKING:
    from coa.learning.accounts import Accounts, Attempt
    from jobs.run.console import Console

FAULTS_SHOWN = 20


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="run directory")


def run(run_dir: Path) -> int:
    """Returns 1 if the accounts don't balance, and prints the faults; raises UserError for a run without a ledger."""
    import sys

    from coa.errors import UserError
    from coa.learning.accounts import fold
    from coa.storage.jsonl import read_lines
    from jobs.run.console import Console
    from jobs.run.run_dir import storage_of
    from jobs.stages.reinforcement.ledger import FILE
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
    from coa.learning.accounts import length_bucket

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
    from coa.learning.accounts import SPARE, delay

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
    from coa.learning.accounts import OPEN, TRAINED

    return [name for name, _ in row.most_common() if name not in (*OPEN, TRAINED)]


def open_in(row: Counter[str]) -> int:
    from coa.learning.accounts import OPEN

    return sum(row[state] for state in OPEN)


COMMAND = Command(
    name="ledger",
    help="show the outcome of every attempt at a task; exit 1 if one is missing or counted twice",
    run=run,
    arguments=arguments,
)
