"""Loads users' own modules in every process: profiles, tools, graders and benchmarks that register themselves.

    COA_EXTENSIONS=my_agents.chess coa train ...        modules, separated by commas
    [project.entry-points."coa.extensions"]             or, for an installed package, an entry point for each

Each module is imported once, when profiles are first imported: in the command, in engines, in tool executors.
"""

import importlib
import os
import sys
from importlib.metadata import entry_points

from coa.errors import UserError

VARIABLE = "COA_EXTENSIONS"
GROUP = "coa.extensions"


def load_extensions() -> None:
    """Imports all extensions; raises UserError for a module that can't be imported."""
    if os.environ.get(VARIABLE) and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # a command's own path begins where it is installed
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for name in named:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise UserError(f"{VARIABLE} names {name!r}: {error}") from error
    for entry in entry_points(group=GROUP):
        entry.load()
