"""Worlds: where tasks come from, with everything that belongs to them.

    tasks.world: NAME           a world that is known by name, with its own settings in the recipe's section `world`
    tasks.path: tasks.jsonl     a file of a user's (`coa.tasks.file_tasks`), within the world that is named, if one is

A world is a class that provides tasks and, optionally: pages for search tools that the recipe does not configure,
experts that play its team, words for a new tokenizer, columns and measures of its own. `register` makes one known; a
file of a user's does that as an extension (docs/extending.md).
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from coa.errors import UserError
from coa.extensions import load_extensions
from coa.registry import Registry
from coa.types import Floats, Task, Tokens

if TYPE_CHECKING:  # an extension that registers a world may be what is being imported
    from coa.agent.codec import Codec
    from coa.agent.episode import AgentConfig
    from coa.agent.grammar import Chain
    from coa.teams.transcript import Mind

Texts = Mapping[str, Sequence[str]]
"""Tag text of the sampled episodes, by task id."""


@dataclass(frozen=True)
class Settings:
    """The recipe's section `world`. A world that has settings derives a dataclass of its own from this one."""

    NO_KEYS = "set tasks.world to a world that has settings"


@dataclass(frozen=True, slots=True)
class WebSite:
    """A web of a world's own, for web_search and crawl_page."""

    pages: Mapping[str, str]
    """Page id to text: what crawl_page reads."""
    hits: Mapping[str, Sequence[dict[str, str]]]
    """Query to hits, best first, each with `title`, `link` (a page id) and `snippet`."""


class World(ABC):
    """A source of tasks. It is built anew in each process that needs it: what travels there is its settings.

    A world must say which tasks it has (`training_task`, `evaluation_tasks`, `profiles`); all else has a default.
    """

    name: str
    """Its name in recipes and messages."""
    settings_type: ClassVar[type[Settings]] = Settings
    columns: tuple[str, ...] = ()
    """Names of columns of text that its rows have in a distilled data set, in addition to the common columns."""
    has_experts: bool = False
    """Whether `experts` plays those roles of a team for which no language model is set."""

    def __init__(self, settings: Any) -> None:
        """settings: of the world's `settings_type`."""
        self.settings = settings

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.settings,)

    # --- tasks ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        """The index-th task of the endless stream of a purpose ("distill" or "rl"), reproducible from the arguments
        alone; none of them is an evaluation task. A finite list begins again at its end."""

    @abstractmethod
    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        """Tasks that are never trained on: `count` of them, or as many as a finite list has."""

    @abstractmethod
    def profiles(self) -> set[str]:
        """The names of the agent profiles that its tasks have."""

    def graders(self) -> set[str]:
        """The names of the graders of its tasks: what they need is looked for before anything starts."""
        return set()

    @property
    def team_runs(self) -> int:
        """Runs of a team that distillation plays if the recipe gives no number."""
        return 10_000

    def mistake(self) -> str:
        """The user's mistake because of which there can be no run on its tasks; empty if there is none."""
        return ""

    # --- what its tools find ----------------------------------------------------------------------------------------

    @property
    def articles(self) -> Mapping[str, str] | None:
        """Title to text, for wiki_search if the recipe does not configure `tools.wiki`; None: there are none."""
        return None

    @property
    def site(self) -> WebSite | None:
        """For web_search and crawl_page if the recipe does not configure `tools.search`; None: there is none."""
        return None

    def caution(self, searches: Iterable[str]) -> str:
        """A warning to the user about tools (`searches`, by name) that find this world's pages; empty for none."""
        return ""

    # --- who plays, and in which words ------------------------------------------------------------------------------

    def experts(self) -> "Mind":
        """Scripted members of the world's team."""
        raise UserError(f"the world {self.name} has no experts of its own")

    def lexicon(self) -> Sequence[str]:
        """Words that a new tokenizer keeps whole."""
        return ()

    # --- columns and measures of its own ----------------------------------------------------------------------------

    def column(self, name: str, task: Task, chain: "Chain") -> str:
        """The value of one of `columns` for a row."""
        raise ValueError(f"the world {self.name} has no column {name}")

    def measures(self, tasks: Sequence[Task], said: Texts) -> dict[str, Any]:
        """Measures of an evaluation besides pass rates, as plain JSON, from the text of the episodes."""
        return {}

    async def probes(
        self,
        tasks: Sequence[Task],
        codec: "Codec",
        agent: "AgentConfig",
        logprobs: Callable[[Tokens], Awaitable[Floats]],
    ) -> dict[str, Any]:
        """Measures of the model itself in an evaluation on the world's own tasks, as plain JSON.

        logprobs: the model's, of every token of a sequence but the first, [tokens - 1].
        """
        return {}

    # --- in words ---------------------------------------------------------------------------------------------------

    def runs_in_words(self) -> str:
        """The number of team runs in words, if the recipe gives none, without looking at any task."""
        return f"{self.team_runs:,} team runs"

    def evaluation_in_words(self, count: int) -> str:
        """The tasks of an evaluation in words, without looking at any task."""
        return f"{count:,} held-out tasks of the world {self.name}"


def caution_of_foreign_tasks(world: World, searches: Iterable[str]) -> str:
    """The warning for tasks that are not the world's own, if tools (`searches`, by name) find its pages; else empty."""
    found = ", ".join(searches)
    return f"caution: {found} will find the made-up pages of the world {world.name}; see `tools`" if found else ""


class NoWorld(World):
    """The world of a recipe that names none."""

    name = "none"

    def mistake(self) -> str:
        return f"there are no tasks: set tasks.path to a file of yours, or tasks.world to one of {', '.join(WORLDS)}"

    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        raise ValueError("a recipe without tasks.world and tasks.path has no tasks")

    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        raise ValueError("a recipe without tasks.world and tasks.path has no tasks")

    def profiles(self) -> set[str]:
        return set()

    def experts(self) -> "Mind":
        raise ValueError("a recipe without tasks.world has no experts")

    def runs_in_words(self) -> str:
        return "no team runs"

    def evaluation_in_words(self, count: int) -> str:
        return "no tasks"


WORLDS: Registry[type[World]] = Registry("world", lazy={"tiny": "coa.demo.guest:TinyWorld"})


def register(world: type[World]) -> None:
    """Makes a world known by its name; raises ValueError for a second one of that name."""
    WORLDS.register(world.name, world)


def find_world(name: str | None) -> type[World]:
    """The world of that name, those of extensions included; raises UserError for an unknown one."""
    load_extensions()
    return NoWorld if name is None else WORLDS.find(name)


def settings_of(name: str | None) -> type[Settings]:
    """The dataclass of the settings that a recipe gives the world of that name."""
    return find_world(name).settings_type


def tasks_sha256(tasks: Iterable[Task]) -> str:
    """A fingerprint of the tasks, in their order."""
    rows = [[task.id, task.question, task.answers, task.profile, task.family, task.grader] for task in tasks]
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()
