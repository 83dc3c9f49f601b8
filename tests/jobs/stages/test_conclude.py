"""What a finished run shows of its evaluations: the table, the report, the page and the model's card."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from coa.agent.records import EpisodeRecord
from coa.config import load
from coa.tasks.worlds import NoWorld, Settings
from jobs.evaluation.attempts import measure, write_evaluation
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import AGENT_FILE
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages.evaluate import asdict_cost
from jobs.stages.train import conclude
from tests.support.fakes import played

TASKS = 24
RIGHT = {"sft": 1, "rl": TASKS}
"""Number of tasks that are answered right."""


def finished(folder: Path, *overrides: str) -> tuple[RunDir, io.StringIO]:
    """A run whose stages are finished, as they leave it."""
    printed = io.StringIO()
    settings = [f"run_dir={folder / 'run'}", f"evaluation.tasks={TASKS}", *overrides]
    run = RunDir(load(Recipe, find_recipe("tiny"), settings), Console(printed, io.StringIO()))
    run.prepare()
    tasks = run.evaluation_tasks()
    for name, right in {**({"base": 0} if run.config.evaluates_base else {}), **RIGHT}.items():
        greedy = {task.id: (played(n < right),) for n, task in enumerate(tasks)}
        sampled: dict[str, tuple[EpisodeRecord, ...]] = {}
        if run.config.evaluation.temperature != 0:
            sampled = {id: (one, played(one.correct, sample=1)) for id, (one,) in greedy.items()}
        write_evaluation(run.trajectories / f"evaluation-{name}.parquet", tasks, greedy, sampled)
        counted = [episode for some in (sampled or greedy).values() for episode in some]
        cost = {"all": asdict_cost(counted)}
        run.finish(f"evaluation-{name}", {**measure(tasks, greedy, sampled, NoWorld(Settings())), "cost": cost})
        run.finish(name, {"steps": 1, "seconds": 1.0, "samples": 1})
    run.finish("team-cost", {"counted": "runs of the team", "families": {"all": asdict_cost([played(True)])}})
    for name in ("tools", "seconds"):
        run.finish(name, {})
    run.model.mkdir(parents=True, exist_ok=True)
    (run.model / AGENT_FILE).write_text("{}")
    return run, printed


@pytest.mark.parametrize("sampled", [True, False])
def test_a_run_shows_what_was_measured_and_nothing_else(tmp_path: Path, sampled: bool) -> None:
    run, printed = finished(tmp_path, *([] if sampled else ["evaluation.temperature=0"]))
    conclude(run)
    evaluation: dict[str, Any] = json.loads((run.folder / "report.json").read_text())["evaluation"]
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    card = (run.model / "README.md").read_text()
    for side in ("sft", "rl", "gain"):
        for part in (evaluation[side], *evaluation[side]["families"].values()):
            assert "greedy" in part
            assert ("pass_at_1" in part) == sampled, side
    shown = page.partition("<body>")[2]
    assert all(
        ("sampled" in text.lower()) == sampled for text in (printed.getvalue(), shown, card.partition("## Ev")[2])
    )
    assert "+0.958" in printed.getvalue()
    assert "| gain | 24 | all | +0.958 [" in card
    low, high = evaluation["gain"]["greedy"]["ci95"]
    assert 0 < low < high <= 1


def test_a_pretrained_model_is_shown_as_it_came(tmp_path: Path) -> None:
    run, printed = finished(tmp_path, "evaluation.base=true", "model.path=pretrained")
    conclude(run)
    assert json.loads((run.folder / "report.json").read_text())["evaluation"]["base"]["greedy"]["mean"] == 0
    assert "before" in printed.getvalue()
    assert "Before, greedy" in (run.folder / "report.html").read_text(encoding="utf-8")
    assert "| base | 24 | all | 0.000 [" in (run.model / "README.md").read_text()


def test_the_page_shows_trajectories_where_only_greedy_ones_were_played(tmp_path: Path) -> None:
    run, _ = finished(tmp_path, "evaluation.temperature=0")
    conclude(run)
    assert "Sample trajectories" in (run.folder / "report.html").read_text(encoding="utf-8")
