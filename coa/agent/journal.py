"""The journal of an episode: its turns and observations, from which another process can resume it. It takes about 8
bytes per token.

    Said(turn 0)  Observed  Said(turn 1)  Observed  ...

The prompt is not part of it, since it follows from the task and the agent's configuration (`coa.agent.episode`).
"""

from dataclasses import dataclass

import numpy as np

from coa.types import Floats, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One finished turn of the policy, of N tokens."""

    token_ids: Tokens
    """[N]"""
    logprobs: Floats
    """[N], log-probs of the sampled tokens under the weights that sampled them."""
    versions: tuple[tuple[int, int], ...]
    """(version, number of tokens) for each run of tokens that one version sampled; the numbers add up to N."""
    ended: bool
    """Whether the policy ended the turn; False if the turn ran out of tokens."""

    def version_of_tokens(self) -> Tokens:
        """[N], the weight version that sampled each token."""
        runs = np.array(self.versions, np.int32).reshape(-1, 2)
        return np.repeat(runs[:, 0], runs[:, 1])

    def __reduce__(self) -> tuple[object, ...]:
        return _make_said, (self.token_ids.tobytes(), self.logprobs.tobytes(), self.versions, self.ended)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A tool's result, as it is written into the context."""

    token_ids: Tokens
    """Tokens of the whole result, even if the context has room for only a part and the episode ends with that part."""

    def __reduce__(self) -> tuple[object, ...]:
        return _make_observed, (self.token_ids.tobytes(),)


# There are many turns, and most are short: plain bytes are much cheaper to pickle than arrays.


def _make_said(token_ids: bytes, logprobs: bytes, versions: tuple[tuple[int, int], ...], ended: bool) -> Said:
    return Said(
        token_ids=np.frombuffer(token_ids, np.int32),
        logprobs=np.frombuffer(logprobs, np.float32),
        versions=versions,
        ended=ended,
    )


def _make_observed(token_ids: bytes) -> Observed:
    return Observed(token_ids=np.frombuffer(token_ids, np.int32))


Delta = Said | Observed
Journal = tuple[Delta, ...]


def length_of(journal: Journal) -> int:
    """Number of tokens that the policy and its tools have added to the prompt."""
    return sum(len(delta.token_ids) for delta in journal)
