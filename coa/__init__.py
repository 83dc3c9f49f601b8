"""The domain of Chain-of-Agents: types, grammar, episodes, distillation, rewards, advantages, losses.

Imports neither Ray nor vLLM nor DeepSpeed. What programs use is offered from here, and imported from `jobs.api` when it
is first asked for:

    import coa

    coa.train, coa.evaluate, coa.load_agent; coa.UserError is a user's mistake
"""

import importlib
from typing import TYPE_CHECKING

from coa.errors import UserError

if TYPE_CHECKING:
    from jobs.api import evaluate, load_agent, train

__all__ = ["UserError", "__version__", "evaluate", "load_agent", "train"]
__version__ = "0.1.0"

OFFERED = ("evaluate", "load_agent", "train")


def __getattr__(name: str) -> object:
    if name in OFFERED:
        return getattr(importlib.import_module("jobs.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
