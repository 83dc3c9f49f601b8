"""Kinds of teams for questions, learnt from the folders of earlier runs."""

import io
from dataclasses import replace
from pathlib import Path

from coa.teams.store import write_transcripts
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Graded
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.teachers.routes import routes_of, saving_in_words
from tests.support.teams import TASKS, play_one


def run_in(folder: Path, team: TeamConfig, out: io.StringIO) -> RunDir:
    folder.mkdir(exist_ok=True)
    return RunDir(Recipe(run_dir=str(folder), team=team), Console(out, io.StringIO()))


def earlier_runs(folder: Path) -> tuple[str, ...]:
    for rules in ("refine", "evolved"):
        (folder / rules / "teachers").mkdir(parents=True)
        runs = [play_one(task, team=TeamConfig(rules=rules)) for task in TASKS[:60]]
        foreign = replace(runs[0], team="an agent of somebody else")
        graded = [Graded(run, run.answer in run.task.answers) for run in (*runs, foreign)]
        write_transcripts(folder / rules / "teachers" / "transcripts-00000.parquet", graded)
    return tuple(str(folder / rules) for rules in ("refine", "evolved"))


def test_routes_are_learnt_once_and_told(tmp_path: Path) -> None:
    out = io.StringIO()
    run = run_in(tmp_path / "run", TeamConfig(learn_from=earlier_runs(tmp_path)), out)
    routes = routes_of(run)
    assert routes is not None
    assert set(routes.kinds) == {"evolved", "refine"}
    [line] = [line for line in out.getvalue().splitlines() if line.startswith("kinds of teams: ")]
    assert "refine 100% of the questions. On 60 tasks held out in turn: " in line
    assert line.endswith(" by refine alone")
    written = (run.teachers / "routes.json").read_bytes()
    again = routes_of(run_in(tmp_path / "run", run.config.team, io.StringIO()))
    assert again is not None
    assert [again.choose(task.question) for task in TASKS[:9]] == [routes.choose(task.question) for task in TASKS[:9]]
    assert (run.teachers / "routes.json").read_bytes() == written


def test_a_team_of_one_kind_has_no_routes(tmp_path: Path) -> None:
    assert routes_of(run_in(tmp_path / "run", TeamConfig(), io.StringIO())) is None
    assert "no task was worked on by every kind" in saving_in_words(None)
