"""The tasks of a user's file, split into training tasks and held-out tasks by a hash of their questions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from coa.bounds import Share
from coa.errors import UserError
from coa.json_object import Json
from coa.seeds import shuffled
from coa.tasks.loading import load_tasks, split
from coa.tasks.questions import repeats
from coa.tasks.remarks import remarks_on
from coa.tasks.samples import SAMPLE_TESTS_ONLY, has_sample_tests_only
from coa.tasks.worlds import Texts, WebSite, World, caution_of_foreign_tasks
from coa.types import Task

if TYPE_CHECKING:
    from coa.agent.grammar import Chain
    from coa.teams.transcript import Mind


@dataclass(frozen=True)
class TasksConfig:
    """The source of tasks: a file of the user, or a world by its name."""

    world: str | None = None
    """Name of a world, such as `tiny`; the recipe's section `world` has its settings. If `path` is set too, tasks come
    from the file, and the world provides only its pages, experts and words."""
    path: str | None = None
    """File of tasks (JSONL, JSON, CSV, TSV or Parquet), or a folder with such a file; None takes the world's tasks."""
    profile: str = "mhqa"
    """Agent profile of rows that name none; the profile determines the tools."""
    grader: str | None = None
    """Grader of open questions whose rows name none; None takes that of the benchmark or of the profile. Programs are
    still graded by their tests and mathematics by Math-Verify; only the reward function given to `coa.train`
    (`function`) replaces these too. In imported transcripts this grader compares all open questions, since they do not
    record who chose a grader."""
    held_out: Share = 0.2
    """Share of a file's tasks that is kept for evaluation and never trained on: of 200 tasks, 0.25 keeps 50. Tasks that
    ask the same question are kept, or trained on, together."""
    sample_tests: bool = False
    """Whether RL trains on programs, too, whose tests are all samples in the question. A program that is a table of
    these passes, so that this is what a policy may learn."""

    PATHS: ClassVar = ("path",)


class FileTasks(World):
    """The tasks of a user's file. Pages, experts, lexicon and columns come from the enclosing world. The file is
    read on first access."""

    def __init__(self, config: TasksConfig, within: World) -> None:
        """config: its `path` must be set."""
        super().__init__(config)
        assert config.path is not None
        self._path, self._within = config.path, within
        self.name = config.path
        self.columns, self.has_experts = within.columns, within.has_experts

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.settings, self._within)

    @property
    def _tasks(self) -> tuple[Task, ...]:
        return _read(_state(Path(self._path)), self._path, self.settings.profile, self.settings.grader)

    @cached_property
    def _sides(self) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
        """Training tasks and held-out tasks, as read from the file on first access."""
        return split(self._tasks, self.settings.held_out)

    def training_task(self, purpose: str, index: int, *, seed: int) -> Task:
        """The index-th task of repeated passes over the file, each in another order. Raises UserError if RL would leave
        out all of them."""
        training = self._for_rl if purpose == "rl" else self._sides[0]
        if not training:
            raise UserError(
                f"{self._path}: all {len(self._sides[0])} training tasks have {SAMPLE_TESTS_ONLY}, and RL leaves these "
                "out: a table of the samples in the question passes for a program (tasks.sample_tests=true keeps them)"
            )
        return training[shuffled(index, len(training), seed, purpose)]

    @cached_property
    def _for_rl(self) -> tuple[Task, ...]:
        """The training tasks that RL takes."""
        training = self._sides[0]
        if self.settings.sample_tests:
            return training
        return tuple(task for task in training if not has_sample_tests_only(task))

    def remarks(self) -> Iterator[str]:
        yield from remarks_on(self._path, self._tasks)
        training, for_rl = len(self._sides[0]), len(self._for_rl)
        if for_rl < training:
            yield (
                f"RL leaves out {training - for_rl} of the {training} training tasks, which have {SAMPLE_TESTS_ONLY} "
                "(tasks.sample_tests=true keeps them)"
            )

    def evaluation_tasks(self, count: int, *, seed: int) -> tuple[Task, ...]:
        """All held-out tasks, whatever `count` is."""
        return self._sides[1]

    def profiles(self) -> set[str]:
        return {task.profile for task in self._tasks}

    def listed_tasks(self) -> Sequence[Task]:
        return self._tasks

    def graders(self) -> set[str]:
        return {task.grader for task in self._tasks}

    @property
    def team_runs(self) -> int:
        """One run for each task."""
        return len(self._sides[0])

    def mistake(self) -> str:
        training, held_out = self._sides
        if training and held_out:
            return ""
        again = repeats(self._tasks)
        asked = (
            f"{len(self._tasks) - again} different questions, in {len(self._tasks)}" if again else f"{len(self._tasks)}"
        )
        return (
            f"tasks.held_out={self.settings.held_out:g} of the {asked} tasks of {self._path} leaves "
            f"{len(training)} to train on and {len(held_out)} held out; both are needed"
        )

    @property
    def articles(self) -> Mapping[str, str] | None:
        return self._within.articles

    @property
    def site(self) -> WebSite | None:
        return self._within.site

    def caution(self, searches: Iterable[str]) -> str:
        return caution_of_foreign_tasks(self._within, searches)

    def experts(self) -> "Mind":
        return self._within.experts()

    def lexicon(self) -> Sequence[str]:
        return self._within.lexicon()

    def column(self, name: str, task: Task, chain: "Chain") -> str:
        return self._within.column(name, task, chain)

    def measures(self, tasks: Sequence[Task], said: Texts) -> Json:
        return self._within.measures(tasks, said)

    def runs_in_words(self) -> str:
        return "a team run for each training task"

    def evaluation_in_words(self, count: int | None) -> str:
        share = f"{100 * self.settings.held_out:g} % of the tasks, held out"
        return share if count is None else f"at most {count:,} of {share}"


@lru_cache(maxsize=1)
def _read(state: object, path: str, profile: str, grader: str | None) -> tuple[Task, ...]:
    """Reads a file, with a cache, since checks and stages read it often. `state` is only a cache key: if the file
    changes, it is read again."""
    return load_tasks(path, profile=profile, grader=grader)


def _state(path: Path) -> tuple[tuple[object, ...], ...]:
    """A value that changes when the file, or a file in the folder, changes."""
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    stats = ((file, file.stat()) for file in files)
    return tuple((str(file), stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size) for file, stat in stats)
