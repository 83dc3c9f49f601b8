"""The simulation's workload: groups of episodes, turn by turn, recorded by a run or assumed from a recipe."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from coa.tools.seconds import draw

NORMAL_P99 = 2.326
"""The 99th percentile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Turn:
    prompt: int
    """New tokens before the turn: the prompt, or an observation."""
    sampled: int
    tool_s: float = 0.0
    """Seconds of the tool call after the turn; 0 without a call."""


Episode = tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class GroupWork:
    episodes: tuple[Episode, ...]
    kept: bool
    """Whether the group is trained; if not, it is dropped as a zero-variance group."""


class Workload(Protocol):
    def draw(self, random: Random) -> GroupWork: ...


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of a tool call, log-normally distributed."""

    median_s: float
    p99_s: float

    def draw(self, random: Random) -> float:
        if self.median_s <= 0:
            return 0.0
        return self.median_s * math.exp(random.gauss(0, math.log(self.p99_s / self.median_s) / NORMAL_P99))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded group."""

    episodes: tuple["RecordedEpisode", ...]
    kept: bool


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    tokens: int
    sampled: int
    turns: int
    tools: tuple[str, ...]

    def turns_of(self, waits: Sequence[float]) -> Episode:
        """The episode's turns, of equal length, since their lengths are not recorded. waits: seconds of its calls, in
        order."""
        turns = max(1, self.turns)
        others = max(0, self.tokens - self.sampled)
        return tuple(
            Turn(
                prompt=_part(others, turns, at),
                sampled=max(1, _part(self.sampled, turns, at)),
                tool_s=waits[at] if at < len(waits) else 0.0,
            )
            for at in range(turns)
        )


def _part(whole: int, parts: int, at: int) -> int:
    """Part `at` of `whole`, split into `parts` integers that add up to it."""
    return whole * (at + 1) // parts - whole * at // parts


@dataclass(frozen=True, slots=True)
class RecordedCalls:
    """The calls of a tool in a run."""

    calls: int
    """All calls; those that are not in `histogram` were answered from a cache, at once."""
    histogram: Mapping[str, float]
    """Calls by the seconds spent inside the tool (`coa.tools.seconds`)."""

    def draw(self, random: Random) -> float:
        inside = sum(self.histogram.values())
        return draw(self.histogram, random) if random.random() * max(self.calls, inside) < inside else 0.0


@dataclass(frozen=True, slots=True)
class Replay:
    """Recorded groups, drawn at random; the seconds of each call are drawn from the recorded ones of its tool."""

    groups: Sequence[Recorded]
    calls: Mapping[str, RecordedCalls]
    """Calls by tool; a call of any other tool takes no time."""

    def draw(self, random: Random) -> GroupWork:
        found = random.choice(self.groups)
        episodes = tuple(one.turns_of([self._wait(tool, random) for tool in one.tools]) for one in found.episodes)
        return GroupWork(episodes, found.kept)

    def _wait(self, tool: str, random: Random) -> float:
        return self.calls[tool].draw(random) if tool in self.calls else 0.0


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumed episodes, without a record. Each number is an assumption, and is printed as one."""

    group: int
    max_turns: int
    max_tokens: int
    max_observation: int
    latency: Latency = Latency(0.3, 3.0)
    median_share: float = 0.125
    """Median share of `max_tokens` that the policy samples in an episode."""
    p99_share: float = 0.75
    kept: float = 0.6
    """Share of groups that are trained."""

    def draw(self, random: Random) -> GroupWork:
        episodes = tuple(self._episode(random) for _ in range(self.group))
        return GroupWork(episodes, random.random() < self.kept)

    def _episode(self, random: Random) -> Episode:
        spread = math.log(self.p99_share / self.median_share) / NORMAL_P99
        sampled = self.max_tokens * min(0.9, self.median_share * math.exp(random.gauss(0, spread)))
        turns = random.randint(1, self.max_turns)
        observed = min(self.max_observation // 2, int(0.9 * self.max_tokens - sampled) // turns)
        return tuple(
            Turn(
                prompt=max(0, observed),
                sampled=max(1, int(sampled / turns)),
                tool_s=self.latency.draw(random) if at < turns - 1 else 0.0,
            )
            for at in range(turns)
        )

    def in_words(self) -> list[str]:
        return [
            f"an episode has 1 to {self.max_turns} turns, each number as likely",
            f"the policy samples {self.median_share:.0%} of {self.max_tokens} tokens of an episode in the median, "
            f"{self.p99_share:.0%} in the 99th percentile, log-normal",
            f"an observation has {self.max_observation // 2} tokens at most",
            f"a tool takes {self.latency.median_s:g} s in the median, {self.latency.p99_s:g} s in the 99th percentile",
            f"something is learnt from {self.kept:.0%} of the groups",
        ]
