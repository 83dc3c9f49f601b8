"""Loads users' own modules, which register profiles, tools, graders, worlds, algorithms and so on, in every process.

    COA_EXTENSIONS=my_agents.chess coa train ...        modules, separated by commas
    [project.entry-points."coa.extensions"]             or, for an installed package, an entry point for each

Each module is imported once, when profiles are first imported: in the command, in engines, in tool executors.
"""

import importlib
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoints, entry_points

from coa.errors import UserError

VARIABLE = "COA_EXTENSIONS"
GROUP = "coa.extensions"
OF_USERS_CODE = (
    *(ImportError, SyntaxError, ValueError, TypeError, NameError, AttributeError, LookupError, OSError),
    *(ArithmeticError, AssertionError),
)
"""Usual failures of a user's code: a missing import, a second registration, a slip of the pen."""


def load_extensions() -> None:
    """Imports all extensions; raises UserError for a module that can't be imported."""
    if os.environ.get(VARIABLE) and (here := os.getcwd()) not in sys.path:
        sys.path.append(here)  # a command's own path begins where it is installed
    named = [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]
    for name in named:
        _load(lambda name=name: importlib.import_module(name), f"{VARIABLE} names {name!r}")
    for entry in installed():
        _load(entry.load, f"the entry point {entry.name!r} of {GROUP}")


@lru_cache(1)
def installed() -> EntryPoints:
    """Looked up once: it reads files of every installed package, and would hold an engine up for 30 ms each time."""
    return entry_points(group=GROUP)


def _load(load: Callable[[], object], what: str) -> None:
    try:
        load()
    except UserError:
        raise
    except OF_USERS_CODE as error:
        kind = "" if isinstance(error, ImportError | ValueError) else f"{type(error).__name__}: "
        raise UserError(f"{what}: {kind}{error}") from error
