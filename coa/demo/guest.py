"""The tiny world as a registered world of recipes: `tasks.world: tiny`."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.agent.grammar import Chain
from coa.demo.experts import ExpertConfig, ScriptedMind
from coa.demo.questions import PROFILE_OF
from coa.demo.strategy import careful_success, strategies, strategy_of
from coa.demo.tasks import evaluation_tasks, training_task
from coa.demo.world import World as Facts
from coa.demo.world import WorldConfig
from coa.json_object import Json
from coa.tasks.worlds import Settings, Texts, WebSite, World
from coa.types import Floats, Task, Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyConfig(WorldConfig, Settings):
    experts: ExpertConfig = field(default_factory=ExpertConfig)


class TinyWorld(World):
    name = "tiny"
    settings_type: ClassVar[type[Settings]] = TinyConfig
    columns = ("strategy",)
    has_experts = True

    def __init__(self, settings: TinyConfig) -> None:
        super().__init__(settings)
        self.facts = Facts(settings)

    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        return training_task(self.facts, seed=seed, purpose=purpose, index=index)

    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        return evaluation_tasks(self.facts, count, seed)

    def profiles(self) -> set[str]:
        return {self.settings.profile} if self.settings.profile else set(PROFILE_OF.values())

    @property
    def articles(self) -> Mapping[str, str]:
        return self.facts.wiki_pages

    @cached_property
    def _site(self) -> WebSite:
        return WebSite(self.facts.site_pages, self.facts.site_hits)

    @property
    def site(self) -> WebSite:
        return self._site

    def experts(self) -> ScriptedMind:
        return ScriptedMind(self.facts, self.settings.experts)

    def lexicon(self) -> tuple[str, ...]:
        return self.facts.lexicon()

    def column(self, name: str, task: Task, chain: Chain) -> str:
        assert name == "strategy"
        return strategy_of(chain, task.family)

    def measures(self, tasks: Sequence[Task], said: Texts) -> Json:
        return {"strategies": strategies(tasks, said)}

    async def probes(
        self,
        tasks: Sequence[Task],
        codec: Codec,
        agent: AgentConfig,
        logprobs: Callable[[Tokens], Awaitable[Floats]],
    ) -> Json:
        return {"careful_success": await careful_success(self.facts, tasks, codec, agent, logprobs)}
