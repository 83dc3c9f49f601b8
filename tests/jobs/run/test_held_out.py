"""The held-out tasks of a run on a file are a file themselves."""

import json
from pathlib import Path

import pytest

from coa.config import load
from coa.errors import UserError
from coa.tasks.loading import load_tasks
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of
from jobs.run.held_out import FILE, check_held_out, write_held_out

ROWS = [{"question": f"What is {n} + 1 ?", "answer": str(n + 1), "profile": "math"} for n in range(12)]
PUBLISHED = [{"question": f"Who is {n} ?", "golden_answers": ["é", "f"], "data_source": "nq"} for n in range(12)]


def begun(folder: Path) -> Recipe:
    path = folder / "mine.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in (*ROWS, *PUBLISHED)))
    config = load(Recipe, None, [f"tasks.path={path}", "tasks.held_out=0.5"])
    write_held_out(folder, config, world_of(config))
    return config


def test_it_is_read_back_to_the_same_tasks(tmp_path: Path) -> None:
    config = begun(tmp_path)
    held_out = world_of(config).evaluation_tasks(0, seed=0)
    assert len(held_out) == 12
    assert load_tasks(tmp_path / FILE) == held_out
    assert {task.family for task in held_out} == {"mine", "nq"}


def test_a_run_does_not_go_on_with_other_held_out_tasks(tmp_path: Path) -> None:
    config = begun(tmp_path)
    check_held_out(tmp_path, config, world_of(config))
    path = tmp_path / "mine.jsonl"
    path.write_text(path.read_text().replace("What is", "How much is"))
    with pytest.raises(UserError, match=rf"^{tmp_path} was begun with other held-out tasks than {path} has now"):
        check_held_out(tmp_path, config, world_of(config))
    check_held_out(tmp_path / "another", config, world_of(config))
    world = load(Recipe, None, ["tasks.world=tiny", "world.companies=20", "evaluation.tasks=5"])
    write_held_out(tmp_path / "another", world, world_of(world))
    assert not (tmp_path / "another").exists(), "a world's tasks are no file"
