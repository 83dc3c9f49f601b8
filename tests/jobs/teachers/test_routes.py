"""Kinds of teams for questions, learnt from the folders of earlier runs."""

import io
import shutil
from dataclasses import replace
from pathlib import Path

from coa.distill.obedience import ObedienceConfig
from coa.teams.store import write_transcripts
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Graded
from jobs.recipe.needs import filter_of, most_kept
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
    for folder in run.config.team.learn_from:
        shutil.rmtree(folder)
    again = routes_of(run_in(tmp_path / "run", run.config.team, io.StringIO()))
    assert again is not None
    assert [again.choose(task.question) for task in TASKS[:9]] == [routes.choose(task.question) for task in TASKS[:9]]
    assert (run.teachers / "routes.json").read_bytes() == written


def test_each_line_of_a_debate_counts_unless_a_judge_sees_the_winners_alone() -> None:
    config = Recipe(run_dir="run", team=TeamConfig(rules="debate", debaters=4))
    run = Graded(play_one(next(task for task in TASKS if task.family == "calc"), team=config.team), True)
    judged = replace(config, distill=replace(config.distill, obedience=ObedienceConfig(model="m")))
    assert [filter_of(one).demonstrations(run) for one in (config, judged)] == [3, 1]
    assert [most_kept(one, 50) for one in (config, judged)] == [200, 50]
    assert most_kept(Recipe(run_dir="run"), 50) == 50


def test_a_team_of_one_kind_has_no_routes(tmp_path: Path) -> None:
    assert routes_of(run_in(tmp_path / "run", TeamConfig(), io.StringIO())) is None
    assert "no task was worked on by every kind" in saving_in_words(None)
