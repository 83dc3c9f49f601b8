"""Tasks of the tiny world: an endless stream for training and a fixed list for evaluation, disjoint by construction."""

from collections import Counter

from coa.demo.questions import (
    CALC,
    KINDS,
    MHQA,
    PROFILE_OF,
    WEB,
    Birthplace,
    Current,
    Puzzle,
    Sum,
    family_of,
)
from coa.demo.world import World
from coa.errors import UserError
from coa.seeds import derive
from coa.types import Task

MOST_DRAWN_BEFORE = 10_000
"""Number of consecutive draws without a new question after which a family counts as exhausted."""


def training_task(world: World, *, seed: int, purpose: str, index: int) -> Task:
    """The index-th task of a stream, e.g. purpose "sft" or "rl"; it never asks about held-out subjects.

    Determined by the run's seed, the purpose and the index alone. Questions may repeat, ids never do.
    """
    puzzle = _draw(world, None, seed, purpose, index, held_out=False)
    return to_task(world, puzzle, f"{purpose}-{index}")


def evaluation_tasks(world: World, n: int, seed: int) -> tuple[Task, ...]:
    """n distinct held-out tasks, the families in turn; raises UserError if there are not that many."""
    families = world.config.families
    puzzles: dict[Puzzle, None] = {}
    attempts = Counter[str]()
    drawn_before = 0
    while len(puzzles) < n:
        family = families[len(puzzles) % len(families)]
        # Counted by family, so that a family's tasks do not depend on the other families.
        puzzle = _draw(world, family, seed, "evaluate", attempts[family], held_out=True)
        attempts[family] += 1
        drawn_before = drawn_before + 1 if puzzle in puzzles else 0
        if drawn_before > MOST_DRAWN_BEFORE:
            raise UserError(
                f"evaluation.tasks={n}: the tiny world has fewer held-out questions; ask for fewer, or raise "
                "world.held_out"
            )
        puzzles[puzzle] = None
    return tuple(to_task(world, puzzle, _name(puzzle)) for puzzle in puzzles)


def to_task(world: World, puzzle: Puzzle, task_id: str) -> Task:
    family = family_of(puzzle)
    return Task(
        id=task_id,
        question=puzzle.question,
        answers=(solution(world, puzzle),),
        profile=world.config.profile or PROFILE_OF[family],
        family=family,
    )


def solution(world: World, puzzle: Puzzle) -> str:
    match puzzle:
        case Sum():
            return str(puzzle.value)
        case Birthplace(kind, person):
            return world.holder(world.birthplace(person), kind)
        case Current(kind, company):
            return world.current(company, kind)


def _name(puzzle: Puzzle) -> str:
    match puzzle:
        case Sum(kind, a, b, c):
            about = f"{a}-{b}-{c}"
        case Birthplace(kind, about) | Current(kind, about):
            about = about.replace(" ", "-")
    return f"{family_of(puzzle)}-{kind}-{about}"


def _draw(world: World, family: str | None, *parts: object, held_out: bool) -> Puzzle:
    """The first puzzle on the wanted side of the split, in an order that the parts determine."""
    families = world.config.families
    for trial in range(10_000):
        rng = _Draw(world.config.seed, *parts, trial)
        puzzle = _puzzle(world, family or families[rng.below(len(families))], rng)
        if puzzle is not None and is_held_out(world, puzzle) == held_out:
            return puzzle
    side = "held-out" if held_out else "training"
    raise UserError(f"world.held_out={world.config.held_out} leaves no {side} tasks of some family")


def is_held_out(world: World, puzzle: Puzzle) -> bool:
    match puzzle:
        case Sum(_, a, b, c):
            return world.held_out("sum", a, b, c)
        case Birthplace(_, person):
            return world.held_out("person", person)
        case Current(_, company):
            return world.held_out("company", company)


def _puzzle(world: World, family: str, rng: "_Draw") -> Puzzle | None:
    """A random puzzle of the family; None if it is a sum below one, whose story would make no sense."""
    kind = KINDS[family][rng.below(4)]
    if family == CALC:
        puzzle = Sum(kind, 10 + rng.below(90), 2 + rng.below(8), 10 + rng.below(90))
        return puzzle if puzzle.value > 0 else None
    if family == MHQA:
        return Birthplace(kind, world.people[rng.below(len(world.people))])
    assert family == WEB
    return Current(kind, world.companies[rng.below(len(world.companies))])


class _Draw:
    """A few numbers from one hash."""

    def __init__(self, *parts: object) -> None:
        self._left = derive(*parts)

    def below(self, n: int) -> int:
        self._left, number = divmod(self._left, n)
        return number
