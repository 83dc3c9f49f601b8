"""`coa benchmarks`: the published benchmarks that `coa evaluate --tasks NAME` knows."""

import sys

from jobs.commands.command import Command

WIDTH = 160
"""Width of the table, in columns, if stdout is not a terminal."""


def run() -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from coa.extensions import load_extensions
    from coa.reporting.benchmarks import show
    from coa.tasks.published.table import BENCHMARKS

    load_extensions()  # extensions may register more benchmarks
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("benchmark", "rows", "profile", "metric", "attempts", "grader", "data set", "terms"):
        table.add_column(column, justify="right" if column == "rows" else "left", overflow="fold")
    for one in BENCHMARKS.values():
        config = f" ({one.hub.config})" if one.hub.config else ""
        rows, metric = str(one.rows[0]), one.metric_at(one.decoding.samples)
        table.add_row(
            one.name, rows, one.profile, metric, show(one.decoding), one.grader, one.hub.id + config, one.terms
        )
    Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False, emoji=False).print(table)


COMMAND = Command(name="benchmarks", help="list the published benchmarks that `evaluate` knows", run=run)
