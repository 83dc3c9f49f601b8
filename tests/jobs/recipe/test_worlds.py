"""Which held-out tasks are evaluated."""

import json
from pathlib import Path

from coa.config import load
from coa.types import Task
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import OF_WORLD, evaluation_tasks, held_out_tasks, sample, world_of


def tasks_of(*settings: str) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """The held-out tasks, and those of them that are evaluated."""
    config = load(Recipe, None, settings)
    world = world_of(config)
    return held_out_tasks(world, config.evaluation), evaluation_tasks(world, config.evaluation)


def test_a_count_takes_some_of_a_files_held_out_tasks_which_are_all_kept_from_training(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f"{json.dumps({'question': f'{n} ?', 'answer': 'x'})}\n" for n in range(40)))
    file = f"tasks.path={path}", "tasks.held_out=0.5"
    every, evaluated = tasks_of(*file)
    assert len(every) == 20
    assert evaluated == every
    again, some = tasks_of(*file, "evaluation.tasks=5")
    assert again == every
    assert len(set(some) & set(every)) == len(some) == 5
    assert tasks_of(*file, "evaluation.tasks=21")[1] == every


def test_a_world_has_as_many_as_are_asked_for() -> None:
    world = "tasks.world=tiny", "world.companies=20"
    assert [len(tasks) for tasks in tasks_of(*world, "evaluation.tasks=7")] == [7, 7]
    assert [len(tasks) for tasks in tasks_of("tasks.world=tiny")] == [OF_WORLD, OF_WORLD]


def test_the_sample_is_fixed_and_takes_families_in_turn() -> None:
    tasks = [
        Task(id=f"{family}-{n}", question="?", answers=("1",), profile="code", family=family)
        for family, count in (("a", 50), ("b", 3), ("c", 50))
        for n in range(count)
    ]
    chosen = sample(tasks, 13)
    assert sample(tasks[::-1], 13) == chosen
    assert [sum(task.family == name for task in chosen) for name in "abc"] == [5, 3, 5]
    assert set(sample(tasks, 1000)) == set(tasks)
