"""What an episode has come to, turn by turn: enough to go on with it elsewhere, at some 8 bytes a token.

    Said(turn 0)  Observed  Said(turn 1)  Observed  ...

The prompt is not in it: it follows from the task and from how the policy is asked (`coa.agent.episode`).
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coa.types import Floats, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One finished turn of the policy, of N tokens."""

    token_ids: Tokens
    """[N]"""
    logprobs: Floats
    """[N], of the sampled tokens, under the weights that sampled them."""
    versions: tuple[tuple[int, int], ...]
    """(version, number of tokens) for each run of tokens that one version sampled; the numbers add up to N."""
    ended: bool
    """Whether the turn came to its own end; False where it ran out of tokens."""

    def version_of_tokens(self) -> Tokens:
        """[N]"""
        runs = np.array(self.versions, np.int32).reshape(-1, 2)
        return np.repeat(runs[:, 0], runs[:, 1])

    def __reduce__(self) -> tuple[Any, ...]:
        return _said, (self.token_ids.tobytes(), self.logprobs.tobytes(), self.versions, self.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What the episode was shown of a tool's result."""

    token_ids: Tokens
    """Whole, also where the context has room for a part of it only: the episode has ended then."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _observed, (self.token_ids.tobytes(),)


# Most turns are short, and there are many: pickled as plain bytes they cost a fraction of what arrays do.


def _said(token_ids: bytes, logprobs: bytes, versions: tuple[tuple[int, int], ...], ended: bool) -> Said:
    return Said(
        token_ids=np.frombuffer(token_ids, np.int32),
        logprobs=np.frombuffer(logprobs, np.float32),
        versions=versions,
        ended=ended,
    )


def _observed(token_ids: bytes) -> Observed:
    return Observed(token_ids=np.frombuffer(token_ids, np.int32))


Delta = Said | Observed
Journal = tuple[Delta, ...]


def length_of(journal: Journal) -> int:
    """Tokens that the policy and its tools have added to the prompt."""
    return sum(len(delta.token_ids) for delta in journal)
