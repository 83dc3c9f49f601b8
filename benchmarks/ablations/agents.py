"""Agents that lack some tags, and the tiny world with these."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.agent.grammar import Chain, Profile
from coa.agent.profiles import PROFILES
from coa.agent.profiles import profile as find_profile
from coa.demo.guest import TinyConfig, TinyWorld
from coa.json_object import Json
from coa.tasks.worlds import Settings
from coa.types import Floats, Task, Tokens


def without(profile: Profile, tags: Collection[str]) -> Profile:
    """The profile in which each of these tags is passed over: what may follow it may come in its place."""

    def places(names: Iterable[str], passed: frozenset[str] = frozenset()) -> tuple[str, ...]:
        found: list[str] = []
        for name in names:
            if name not in tags:
                found.append(name)
            elif name not in passed:
                found += places(profile.transitions[name], passed | {name})
        return tuple(dict.fromkeys(found))

    return replace(
        profile,
        name="_".join((profile.name, "without", *sorted(tags))),
        tags=tuple(tag for tag in profile.tags if tag.name not in tags),
        transitions={state: places(names) for state, names in profile.transitions.items() if state not in tags},
    )


def profile_without(name: str, tags: Collection[str]) -> str:
    """The name of a profile without these tags, which is registered if it is not yet."""
    made = without(find_profile(name), tags)
    if made.name not in PROFILES:
        PROFILES.register(made.name, made)
    return made.name


def shortened(chain: Chain, tags: Collection[str]) -> Chain:
    return tuple(span for span in chain if span.tag not in tags)


@dataclass(frozen=True, slots=True, kw_only=True)
class AblatedConfig(TinyConfig):
    without: list[str] = field(default_factory=list[str])
    """Tags that no agent has."""


class Ablated(TinyWorld):
    name = "ablated"
    settings_type: ClassVar[type[Settings]] = AblatedConfig

    def __init__(self, settings: AblatedConfig) -> None:
        super().__init__(settings)
        self._without = frozenset(settings.without)
        for name in super().profiles():
            profile_without(name, self._without)

    def as_here(self, task: Task) -> Task:
        return replace(task, profile=profile_without(task.profile, self._without))

    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        return self.as_here(super().training_task(purpose, index, seed=seed))

    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        return tuple(map(self.as_here, super().evaluation_tasks(count, seed=seed)))

    def profiles(self) -> set[str]:
        return {profile_without(name, self._without) for name in super().profiles()}

    async def probes(
        self,
        tasks: Sequence[Task],
        codec: Codec,
        agent: AgentConfig,
        logprobs: Callable[[Tokens], Awaitable[Floats]],
    ) -> Json:
        """None: the careful route is written with all tags."""
        return {}
