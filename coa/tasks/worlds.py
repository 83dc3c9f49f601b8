"""Worlds: sources of tasks, with everything that belongs to the tasks.

    tasks.world: NAME           a registered world, with its own settings in the recipe's section `world`
    tasks.path: tasks.jsonl     a user's file (`coa.tasks.file_tasks`), within the named world, if one is named

A world is a class that provides tasks and, optionally: pages for search tools that the recipe does not configure,
experts that play its team, words for a new tokenizer, its own columns and measures. `register` makes a world known,
also from a user's extension (docs/extending.md).
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from coa.errors import UserError
from coa.extensions import load_extensions
from coa.json_object import Json
from coa.registry import Registry
from coa.types import Floats, Task, Tokens

if TYPE_CHECKING:  # these modules may be importing the extension that registers a world
    from coa.agent.codec import Codec
    from coa.agent.episode import AgentConfig
    from coa.agent.grammar import Chain
    from coa.teams.transcript import Mind

Texts = Mapping[str, Sequence[str]]
"""Tag text of the sampled episodes, by task id."""


@dataclass(frozen=True)
class Settings:
    """The recipe's section `world`. A world with settings derives its own dataclass from this one."""

    NO_KEYS = "set tasks.world to a world that has settings"
    UNBOUNDED = True


@dataclass(frozen=True, slots=True)
class WebSite:
    """A world's own web pages, for web_search and crawl_page."""

    pages: Mapping[str, str]
    """Page id to the text that crawl_page reads."""
    hits: Mapping[str, Sequence[dict[str, str]]]
    """Query to hits, best first, each with `title`, `link` (a page id) and `snippet`."""


class World(ABC):
    """A source of tasks. Each process builds its own instance from the settings.

    A world must define its tasks (`training_task`, `evaluation_tasks`, `profiles`); everything else has a default.
    """

    name: str
    """Name of the world in recipes and messages."""
    settings_type: ClassVar[type[Settings]] = Settings
    columns: tuple[str, ...] = ()
    """Names of additional text columns of its rows in a distilled data set."""
    has_experts: bool = False
    """Whether `experts` plays those roles of a team for which no language model is set."""

    def __init__(self, settings: Any) -> None:
        """settings: an instance of the world's `settings_type`."""
        self.settings = settings

    def __reduce__(self) -> tuple[object, ...]:
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

    def listed_tasks(self) -> Sequence[Task]:
        """All tasks of a finite list; empty if they are an endless stream."""
        return ()

    def graders(self) -> set[str]:
        """The names of the graders of its tasks, whose requirements are checked before a run starts."""
        return set()

    @property
    def team_runs(self) -> int:
        """Number of team runs of distillation if the recipe gives none."""
        return 10_000

    def mistake(self) -> str:
        """The user's mistake that makes runs on its tasks impossible; empty if there is none."""
        return ""

    def remarks(self) -> Iterable[str]:
        """Sentences that the user should read about its tasks before anything starts."""
        return ()

    # --- contents of its tools --------------------------------------------------------------------------------------

    @property
    def articles(self) -> Mapping[str, str] | None:
        """Title to text, for wiki_search if the recipe does not configure `tools.wiki`; None if there are none."""
        return None

    @property
    def site(self) -> WebSite | None:
        """The site for web_search and crawl_page if the recipe does not configure `tools.search`; None for none."""
        return None

    def caution(self, searches: Iterable[str]) -> str:
        """A warning to the user about tools (`searches`, by name) that find this world's pages; empty for none."""
        return ""

    # --- experts and vocabulary -------------------------------------------------------------------------------------

    def experts(self) -> "Mind":
        """Scripted members of the world's team."""
        raise UserError(f"the world {self.name} has no experts of its own")

    def lexicon(self) -> Sequence[str]:
        """Words that a new tokenizer keeps whole."""
        return ()

    # --- its own columns and measures -------------------------------------------------------------------------------

    def column(self, name: str, task: Task, chain: "Chain") -> str:
        """The value of one of `columns` for a row."""
        raise ValueError(f"the world {self.name} has no column {name}")

    def measures(self, tasks: Sequence[Task], said: Texts) -> Json:
        """Measures of an evaluation besides pass rates, as plain JSON, from the text of the episodes."""
        return {}

    async def probes(
        self,
        tasks: Sequence[Task],
        codec: "Codec",
        agent: "AgentConfig",
        logprobs: Callable[[Tokens], Awaitable[Floats]],
    ) -> Json:
        """Measures of the model itself in an evaluation on the world's own tasks, as plain JSON.

        logprobs: returns the model's log-probs of all tokens of a sequence except the first, [tokens - 1].
        """
        return {}

    # --- descriptions -----------------------------------------------------------------------------------------------

    def runs_in_words(self) -> str:
        """Description of the default number of team runs, without reading any task."""
        return f"{self.team_runs:,} team runs"

    def evaluation_in_words(self, count: int | None) -> str:
        """Description of the tasks of an evaluation, without reading any task; count: None for all of a finite list."""
        return f"{'all' if count is None else f'{count:,}'} held-out tasks of the world {self.name}"


def caution_of_foreign_tasks(world: World, searches: Iterable[str]) -> str:
    """The warning for tasks from elsewhere if tools (`searches`, by name) find the world's pages; otherwise empty."""
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

    def evaluation_in_words(self, count: int | None) -> str:
        return "no tasks"


WORLDS: Registry[type[World]] = Registry(
    "world",
    lazy={
        "tiny": "coa.demo.guest:TinyWorld",
        "reasoning_gym": "coa.tasks.reasoning_gym.world:ReasoningGym",
        "documents": "coa.tasks.made.world:Documents",
    },
)


def register(world: type[World]) -> None:
    """Makes a world known by its name; raises ValueError for a second one of that name."""
    WORLDS.register(world.name, world)


def find_world(name: str | None) -> type[World]:
    """The world of that name, including those of extensions; raises UserError for an unknown name."""
    load_extensions()
    return NoWorld if name is None else WORLDS.find(name)


def settings_of(name: str | None) -> type[Settings]:
    """The dataclass of the settings that a recipe gives the world of that name."""
    return find_world(name).settings_type


def tasks_sha256(tasks: Iterable[Task]) -> str:
    """A fingerprint of the tasks, in their order."""
    rows = [[value for name, value in asdict(task).items() if value or name != "metadata"] for task in tasks]
    return hashlib.sha256(json.dumps(rows, ensure_ascii=False).encode()).hexdigest()
