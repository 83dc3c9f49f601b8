"""Selects the tasks for RL: those that a model does not solve too often and was not trained on (paper, 3.3.1).

    tasks -> in the SFT data? -> attempts at each: solved too often? always? never? -> a uniform sample

There are two modes. `direct`: a model answers without tools; tasks that it can answer from memory need no agent.
`tuned`: the fine-tuned agent itself attempts the tasks; a task that it always solves has no learning signal.

The functions are pure, and samples are drawn by hash: whether a task is kept depends only on its own attempts, and
the random sample does not depend on the order of the tasks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, TypedDict

from coa.agent.profiles.direct import DIRECT
from coa.bounds import Above0, AnyInt, AtLeast1, PositiveShare, Share
from coa.grading.graders import EXACT, JUDGE
from coa.seeds import derive
from coa.tasks.published.benchmark import Decoding
from coa.tasks.questions import question_key
from coa.types import Task

LEARNT = "in the SFT data"
TOO_EASY = "solved too often"
SOLVED = "always solved"
UNSOLVED = "never solved"
NOT_DRAWN = "not drawn"
REASONS = (LEARNT, TOO_EASY, SOLVED, UNSOLVED, NOT_DRAWN)
"""The reasons to drop a task, of which the first that applies is given."""


class Mode(StrEnum):
    """Which kind of model attempts the tasks."""

    DIRECT = "direct"
    TUNED = "tuned"


@dataclass(frozen=True)
class Screen:
    """The rule that keeps or drops tasks by the results of several tries."""

    tries: AtLeast1
    """Number of tries at each task."""
    max_rate: Share = 1.0
    """Maximum share of right tries of a task that is kept."""
    drop_solved: bool = False
    """Whether tasks that are solved in every try are dropped."""
    drop_unsolved: bool = False
    """Whether tasks that are solved in no try are dropped: they are too hard, or their accepted answers are wrong."""


@dataclass(frozen=True)
class SelectionConfig:
    """Which tasks `coa select` keeps. Defaults are the paper's if it gives them; it gives no sampling parameters and
    no number of tasks."""

    direct: Screen = field(default_factory=lambda: Screen(tries=32, max_rate=0.3))
    """Rule of `--mode direct`, which keeps tasks that a base model does not already solve without tools."""
    tuned: Screen = field(default_factory=lambda: Screen(tries=8, drop_solved=True))
    """Rule of `--mode tuned`, which keeps tasks that the fine-tuned model does not solve in every try."""
    temperature: Above0 = 1.0
    """Sampling temperature of the tries; above 0, since all tries at a task would be equal otherwise."""
    top_p: PositiveShare = 1.0
    """Nucleus sampling parameter (top-p) of the tries."""
    judge: bool = False
    """Whether a judge grades direct answers to tasks that have one as grader; otherwise they are compared exactly, as
    in the paper."""
    sft: str | None = None
    """Data that the model was fine-tuned on: a run's folder, a folder of distilled data, or a tasks file. Its tasks are
    left out for the profiles in `disjoint`."""
    disjoint: tuple[str, ...] = ("web",)
    """Profiles for which tasks in `sft` are left out. (For programs, the paper uses the same tasks in both.)"""
    limit: AtLeast1 | None = None
    """Maximum number of tasks to keep; None keeps all that pass."""
    seed: AnyInt = 0
    """Seed that decides which of the passing tasks are kept if `limit` is set."""

    PATHS: ClassVar = ("sft",)

    def screen(self, mode: Mode) -> Screen:
        return self.direct if mode is Mode.DIRECT else self.tuned

    def decoding(self, mode: Mode) -> Decoding:
        return Decoding(samples=self.screen(mode).tries, temperature=self.temperature, top_p=self.top_p)


@dataclass(frozen=True, slots=True)
class Attempts:
    """The number of right tries at a task, and of all tries: `Attempts(9, 32)`."""

    right: int
    tries: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.tries or self.tries < 1:
            raise ValueError(f"{self.right} right of {self.tries} tries")

    @property
    def rate(self) -> float:
        return self.right / self.tries


@dataclass(frozen=True, slots=True)
class Learnt:
    """The tasks that a model was trained on, recognised by id or by question."""

    ids: frozenset[str] = frozenset()
    questions: frozenset[str] = frozenset()
    """Keys of the questions, by `question_key`."""

    @classmethod
    def of(cls, tasks: Iterable[Task]) -> "Learnt":
        pairs = [(task.id, question_key(task.question)) for task in tasks]
        return cls(frozenset(name for name, _ in pairs), frozenset(question for _, question in pairs))

    def __contains__(self, task: Task) -> bool:
        return task.id in self.ids or question_key(task.question) in self.questions


NOTHING = Learnt()


class Counts(TypedDict):
    """Numbers of tasks; tasks that are not kept are dropped."""

    tasks: int
    kept: int
    dropped: dict[str, int]
    """Number of dropped tasks by reason, without reasons that do not occur."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Kept and dropped tasks, in their order."""

    kept: tuple[Task, ...]
    dropped: tuple[tuple[Task, str], ...]
    """Dropped tasks with their reasons."""

    def counts(self, family: str | None = None) -> Counts:
        """Counts of all tasks, or of a family's."""

        def counts(task: Task) -> bool:
            return family is None or task.family == family

        kept = sum(map(counts, self.kept))
        why = Counter(reason for task, reason in self.dropped if counts(task))
        dropped = {reason: why[reason] for reason in REASONS if why[reason]}
        return Counts(tasks=kept + why.total(), kept=kept, dropped=dropped)


def select(
    tasks: Sequence[Task],
    attempts: Mapping[str, Attempts],
    config: SelectionConfig,
    mode: Mode,
    learnt: Learnt = NOTHING,
) -> Selection:
    """Selects among all tasks. attempts: by task id; raises KeyError for a task without attempts, unless it is dropped
    as LEARNT."""
    screen = config.screen(mode)
    why = {
        task.id: LEARNT if is_learnt(task, config, learnt) else reason_to_drop(attempts[task.id], screen)
        for task in tasks
    }
    drawn = draw((name for name, reason in why.items() if reason is None), config.limit, config.seed)
    return Selection(
        kept=tuple(task for task in tasks if task.id in drawn),
        dropped=tuple((task, why[task.id] or NOT_DRAWN) for task in tasks if task.id not in drawn),
    )


def is_learnt(task: Task, config: SelectionConfig, learnt: Learnt) -> bool:
    return task.profile in config.disjoint and task in learnt


def as_attempted(task: Task, config: SelectionConfig, mode: Mode) -> Task:
    """The task as it is attempted: with its own profile, or directly, with exact comparison unless `judge` is set."""
    if mode is Mode.TUNED:
        return task
    exactly = task.grader == JUDGE and not config.judge
    return replace(task, profile=DIRECT.name, grader=EXACT if exactly else task.grader)


def reason_to_drop(attempts: Attempts, screen: Screen) -> str | None:
    """The reason why the screen drops a task; None if it keeps the task."""
    # 3 / 10 is rounded to the same float as a setting of 0.3; the product 0.3 * 10 would have another rounding error.
    if attempts.rate > screen.max_rate:
        return TOO_EASY
    if screen.drop_solved and attempts.right == attempts.tries:
        return SOLVED
    if screen.drop_unsolved and not attempts.right:
        return UNSOLVED
    return None


def draw(names: Iterable[str], limit: int | None, seed: int) -> frozenset[str]:
    """Draws up to `limit` names uniformly, independent of their order; the sample is a subset of every larger one."""
    if limit is None:
        return frozenset(names)
    return frozenset(sorted(names, key=lambda name: (derive(seed, "selection", name), name))[:limit])
