"""What is trained of an episode in which a program asks the policy: each response at most once, as it was sampled.

    calls (prompt, response)                     tree                       paths
    1  [u]          -> a                         1 - 2 - 5                  1 2 5    trained: 1, 2, 5
    2  [u a t]      -> b                         |   `-- 6                  1 2 6    trained: 6
    3  [u a t]      -> c   (nothing continued)   `-- 3 dropped              4        trained: 4
    4  [s]          -> d   (a sub-agent)         4
    5  [u a t b v]  -> e
    6  [u a t b w]  -> f

The parent of a call is the call whose prompt and response are the longest beginning of its own prompt, token by token;
it has to be answered before. A conversation that goes on is thus one path, whatever else the program asks in between,
and one that it forks or rewrites is several, which share their beginning.

A response that a request's schema or bias has shaped is context: its log-probs are not those of the policy alone.

Calls with the same prompt are repetitions of each other. If one of them is continued, the others were retries. If none
is, those that were under way at the same time are votes, and a later one replaces what was answered before it. A call
that begins a path, has no tool call and is not continued is auxiliary (a title, a check of its own) unless a line of
its text comes up again, in the messages of a later call or in the answer; the last one of an episode is not auxiliary.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import xxhash

from coa.agent.journal import Said
from coa.types import ENVIRONMENT, Floats, Mask, Tokens


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request of the program to the policy, and its response."""

    number: int
    """The order in which calls were asked."""
    asked: int
    answered: int
    """When, by a clock that the calls of an episode share."""
    prompt: Tokens
    said: Said
    text: str
    """The response as the program got it."""
    messages: tuple[str, ...]
    """Those of its request, each as JSON."""
    tools: tuple[str, ...] = ()
    """Names of the tools that the response calls."""
    free: bool = True
    """Whether nothing but the policy decided which tokens were sampled: no schema, no bias."""

    @cached_property
    def whole(self) -> Tokens:
        """Prompt and response."""
        return np.concatenate([self.prompt, self.said.token_ids])


class Unused(StrEnum):
    """Why a response is not trained."""

    RETRIED = "retried"
    """Another response to the same prompt was used."""
    AUXILIARY = "auxiliary"
    """Nothing came of it."""
    CONSTRAINED = "constrained"
    """Its request constrained what could be sampled."""


@dataclass(frozen=True, slots=True)
class Path:
    """Calls of which each continues the one before."""

    calls: tuple[Call, ...]
    trained: frozenset[int]
    """Numbers of the calls whose responses are trained here; another path trains the others."""

    def arrays(self) -> tuple[Tokens, Mask, Floats, Tokens]:
        """[T] each: tokens, the mask of those that are trained, and their log-probs and versions."""
        token_ids = self.calls[-1].whole
        mask = np.zeros(len(token_ids), np.bool_)
        logprobs = np.zeros(len(token_ids), np.float32)
        versions = np.full(len(token_ids), ENVIRONMENT, np.int32)
        for call in self.calls:
            if call.number in self.trained:
                here = slice(len(call.prompt), len(call.prompt) + len(call.said.token_ids))
                mask[here] = True
                logprobs[here] = call.said.logprobs
                versions[here] = call.said.version_of_tokens()
        return token_ids, mask, logprobs, versions


@dataclass(frozen=True, slots=True)
class Forest:
    paths: tuple[Path, ...]
    """Those on which something is trained; where nothing is, the one of the last call."""
    unused: Mapping[int, Unused]
    """Calls whose responses are not trained, by number. Constrained ones may be on a path, others are on none."""


def forest_of(calls: Sequence[Call], answer: str, *, auxiliary: bool = False) -> Forest:
    """The paths of an episode. answer: the program's. auxiliary: whether auxiliary calls are trained, too."""
    calls = sorted(calls, key=lambda call: call.number)
    above = parents_of(calls)
    kept, unused = calls, dict[int, Unused]()
    while retried := set(_retried(kept, above)):
        kept = [call for call in kept if call.number not in retried]
        unused |= dict.fromkeys(retried, Unused.RETRIED)
    if not auxiliary and (idle := set(_auxiliary(kept, above, calls, answer))):
        kept = [call for call in kept if call.number not in idle]
        unused |= dict.fromkeys(idle, Unused.AUXILIARY)
    unused |= {call.number: Unused.CONSTRAINED for call in kept if not call.free}
    by_number = {call.number: call for call in kept}
    continued = _continued(kept, above)
    trained: set[int] = set()
    paths: list[Path] = []
    for leaf in kept:
        if leaf.number not in continued:
            line = [leaf]
            while (parent := above[line[-1].number]) is not None:
                line.append(by_number[parent])
            new = frozenset(call.number for call in line if call.free) - trained
            trained |= new
            paths.append(Path(tuple(reversed(line)), new))
    learnt = [path for path in paths if path.trained]
    return Forest(tuple(learnt or paths[-1:]), unused)


def _continued(calls: Iterable[Call], above: Mapping[int, int | None]) -> set[int]:
    return {parent for call in calls if (parent := above[call.number]) is not None}


def parents_of(calls: Sequence[Call]) -> dict[int, int | None]:
    """For each call, the number of the one that it continues; None for one that begins a path."""
    ends: dict[tuple[int, int], list[Call]] = defaultdict(list)
    for call in calls:
        ends[len(call.whole), _digest(call.whole)].append(call)
    lengths = sorted({length for length, _ in ends})
    found: dict[int, int | None] = {}
    for call in calls:
        found[call.number] = None
        running, at = xxhash.xxh3_128(), 0
        for length in lengths:
            if length > len(call.prompt):
                break
            running.update(_bytes(call.prompt[at:length]))
            at = length
            before = [one for one in ends.get((length, running.intdigest()), ()) if one.answered < call.asked]
            if before:
                found[call.number] = max(before, key=lambda one: (one.answered, one.number)).number
    return found


def _bytes(token_ids: Tokens) -> bytes:
    return np.ascontiguousarray(token_ids, np.int32).tobytes()


def _digest(token_ids: Tokens) -> int:
    return xxhash.xxh3_128_intdigest(_bytes(token_ids))


def _retried(calls: Sequence[Call], above: Mapping[int, int | None]) -> Iterator[int]:
    continued = _continued(calls, above)
    by_prompt: dict[int, list[Call]] = defaultdict(list)
    for call in calls:
        by_prompt[_digest(call.prompt)].append(call)
    for alike in by_prompt.values():
        used = any(call.number in continued for call in alike)
        for call in alike:
            replaced = any(call.answered < other.asked for other in alike)
            if call.number not in continued and (used or replaced):
                yield call.number


def _auxiliary(
    kept: Sequence[Call], above: Mapping[int, int | None], calls: Sequence[Call], answer: str
) -> Iterator[int]:
    continued, last = _continued(kept, above), max(kept, key=lambda call: call.answered, default=None)
    for call in kept:
        alone = above[call.number] is None and call.number not in continued
        if alone and not call.tools and call is not last and not _comes_up(call, calls, answer):
            yield call.number


def _comes_up(call: Call, calls: Sequence[Call], answer: str) -> bool:
    lines = [line.strip() for line in call.text.splitlines() if line.strip()]
    later = [message for other in calls if other.asked > call.answered for message in other.messages]
    within = [json.dumps(line)[1:-1] for line in lines]
    return any(line in answer for line in lines) or any(line in message for line in within for message in later)
