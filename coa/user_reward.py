"""A grader that a program gives as a function, and how it gets to every process of a run.

    def close(task: Task, answer: str) -> float: ...         from 0 (wrong) to 1 (right); may be `async`

    coa.train("own_tasks", tasks="tasks.jsonl", reward=close)

The function is pickled by value, with the functions of its module that it calls, into an environment variable: a
worker need not be able to import it, and no file has to be shared. What it imports must be installed there.
"""

import base64
import inspect
import os
import pickle
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from coa.errors import UserError
from coa.extensions import OF_USERS_CODE
from coa.tools.base import UseTool
from coa.types import Task

UserReward = Callable[[Task, str], float | Awaitable[float]]

USER_REWARD = "function"
"""The grader's name in recipes and tasks."""
VARIABLE = "COA_REWARD"
MOST = 100_000
"""Characters of the pickled function: Linux takes 131,072 for a variable."""


@contextmanager
def user_reward(function: UserReward | None) -> Iterator[None]:
    """The grader `function` is this one within, here and in processes that are started. None: there is none.

    Raises UserError for what can't travel.
    """
    before = os.environ.get(VARIABLE)
    if function is not None:
        os.environ[VARIABLE] = packed(function)
    try:
        yield
    finally:
        if function is not None:
            os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def packed(function: UserReward) -> str:
    """Raises UserError for what is no function, holds what can't be pickled, or holds too much."""
    import cloudpickle

    if not callable(function):
        raise UserError(f"reward is {function!r}, expected a function (task, answer) -> float")
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    by_value = module is not None and module.__name__ not in ("__main__", *cloudpickle.list_registry_pickle_by_value())
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        text = base64.b64encode(cloudpickle.dumps(function)).decode()
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        raise UserError(f"reward can't be sent to other processes: {error}") from error
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)
    if len(text) > MOST:
        raise UserError(f"reward takes {len(text):,} bytes, more than {MOST:,}: let the function load its data itself")
    return text


def require_user_reward() -> None:
    """Raises UserError where no program has given a function."""
    if VARIABLE not in os.environ:
        raise UserError(
            f"the grader {USER_REWARD!r} is a function that a program gives: coa.train(..., reward=FUNCTION), see "
            "docs/python.md"
        )


async def grade_by_user(answer: str, task: Task, use_tool: UseTool | None = None) -> float:
    """0 for no answer, without asking. Raises UserError if the function fails, or returns what is no grade."""
    if not answer.strip():
        return 0.0
    require_user_reward()
    try:
        grade = _unpacked(os.environ[VARIABLE])(task, answer)
        found = float(await grade if inspect.isawaitable(grade) else grade)
    except OF_USERS_CODE as error:
        raise UserError(f"reward failed at task {task.id}: {type(error).__name__}: {error}") from error
    if not 0 <= found <= 1:
        raise UserError(f"reward is {found:g} at task {task.id}, expected from 0 (wrong) to 1 (right)")
    return found


@lru_cache(1)
def _unpacked(text: str) -> UserReward:
    return pickle.loads(base64.b64decode(text))
