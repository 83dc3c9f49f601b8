"""Rewards: outcome first, gated by form. Pure functions of a trajectory and its task."""

import re
import string
from collections.abc import Callable
from dataclasses import dataclass

from coa.maths import comparer
from coa.types import Scored, Status, Task, Trajectory

_ARTICLES = re.compile(r"\b(a|an|the)\b")
# Not a number's sign and decimal point: -5 is not 5.
_PUNCTUATION = re.compile(rf"(?!(?<!\w)-\d|(?<=\d)\.\d)[{re.escape(string.punctuation)}]")


def _words(text: str) -> str:
    return " ".join(text.split())


def normalise(text: str) -> str:
    """Lower case, without punctuation, articles and extra blanks: the usual form for open question answering.

    Where nothing else would be left (the answer A), articles and punctuation stay.
    """
    whole = text.lower()
    bare = _PUNCTUATION.sub("", whole)
    return _words(_ARTICLES.sub(" ", bare)) or _words(bare) or _words(whole)


def exact_match(answer: str, accepted: tuple[str, ...]) -> bool:
    """Every `|`-separated part of the answer equals some accepted answer after `normalise`."""
    parts = [normalise(part) for part in answer.split("|") if part.strip()]
    golds = {normalise(gold) for gold in accepted}
    return bool(parts) and all(part in golds for part in parts)


def maths(answer: str, accepted: tuple[str, ...]) -> bool:
    """Math-Verify's equivalence of two LaTeX or plain expressions, within the time limit of `coa.maths`."""
    return comparer().equal(answer, accepted)


BLOCKING = frozenset({"math"})
"""Graders that wait for another process."""

GRADERS: dict[str, Callable[[str, tuple[str, ...]], bool]] = {"exact": exact_match, "math": maths}


@dataclass(frozen=True)
class RewardConfig:
    """reward = correct x well formed, plus the overlong term (paper, section 3.3; DAPO, arXiv 2503.14476)."""

    need_form: bool = True
    """A correct answer in a chain that breaks its profile's transition table earns nothing."""
    overlong_buffer: float = 0.125
    """Share of the response budget over which the penalty grows from 0 to -1."""


def overlong(length: int, budget: int, buffer: float) -> float:
    """0 up to (1 - buffer) of the budget, then linear to -1 at the budget."""
    soft = budget * buffer
    if soft <= 0:
        return 0.0
    return -min(1.0, max(0.0, (length - (budget - soft)) / soft))


def score(trajectory: Trajectory, task: Task, config: RewardConfig, *, budget: int) -> Scored:
    """`budget` is the episode's token budget without its prompt."""
    answered = trajectory.status is Status.ANSWERED
    correct = answered and GRADERS[task.grader](trajectory.answer, task.answers)
    well_formed = answered and trajectory.transitions_hold
    earned = correct and (well_formed or not config.need_form)
    length = len(trajectory.token_ids) - trajectory.prompt_length
    return Scored(
        trajectory=trajectory,
        correct=correct,
        well_formed=well_formed,
        reward=float(earned) + overlong(length, budget, config.overlong_buffer),
    )
