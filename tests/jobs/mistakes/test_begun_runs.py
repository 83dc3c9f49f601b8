"""Mistakes about a run that was begun: a stage before its time, and a folder that holds another run."""

import re
from pathlib import Path

import pytest

from coa.config import dump, load
from jobs.recipe.checks import check_run
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from tests.support.mistakes import MODEL, mistake


def begin(here: Path, *overrides: str) -> None:
    """A run that was begun with these settings."""
    (here / "run").mkdir(exist_ok=True)
    config = load(Recipe, find_recipe("tiny"), ["run_dir=run", *overrides])
    (here / "run" / "config.yaml").write_text(dump(config))


def test_a_stage_before_its_time(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "run `coa distill` first" in mistake(capfd, "sft", "--recipe", "tiny", "run_dir=run")
    assert "run `coa sft` first" in mistake(capfd, "rl", "--recipe", "tiny", "run_dir=run")


def test_a_folder_that_holds_another_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    begin(here)
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "seed=5")
    assert told == ("run holds a run with seed=0, not 5: resume it with the same settings, or choose another run_dir")


def test_a_folder_that_holds_a_run_of_another_recipe(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "run").mkdir()
    config = load(Recipe, find_recipe("own_tasks"), ["run_dir=run", "tasks.path=mine.jsonl"])
    (here / "run" / "config.yaml").write_text(dump(config))
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert re.fullmatch(
        r"run holds a run with tasks\.world=None, not tiny and \d\d other settings: resume it with the same settings, "
        "or choose another run_dir",
        told,
    )


def test_a_setting_that_is_left_out_is_another_setting(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    begin(here, "team.roles.critic.duty=Doubt everything.")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert told.startswith("run holds a run with team.roles.critic.")


def test_a_run_that_lacks_a_later_setting_goes_on_and_one_that_is_not_understood_is_one_line(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begin(here)
    path = here / "run" / "config.yaml"
    old = path.read_text()
    path.write_text(old.replace("    max_tag_tokens: null\n", ""))
    check_run(load(Recipe, find_recipe("tiny"), ["run_dir=run"]))
    path.write_text(old + "lost: 1\n")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert told.startswith("run holds a run that this version of coa can't resume (run/config.yaml: unknown key lost")
    path.write_text("rl: [1, 2\n")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert told.startswith("run holds a run that this version of coa can't resume (recipe run/config.yaml: line 2: ")


def test_a_model_may_be_asked_elsewhere_when_a_run_goes_on_but_no_other_one(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    at, elsewhere = (f"models.m.endpoint.url=http://127.0.0.1:{port}/v1" for port in (1, 2))
    begin(here, *MODEL, at)
    free = [f"models.m.endpoint.{name}=3" for name in ("concurrent", "max_retry_after_s", "max_tokens")]
    schemas = ["distill.obedience.schema=false", "tools.judge.schema=false"]
    fields = ["models.m.endpoint", "tools.judge", "tools.crawl.summary"]
    extra = [f"{where}.extra={{temperature: null, effort: {{level: low}}}}" for where in fields]
    now = ["run_dir=run", *MODEL, elsewhere, *free, *schemas, *extra, "models.m.serve.host=127.0.0.1"]
    check_run(load(Recipe, find_recipe("tiny"), now))
    told = mistake(capfd, "distill", "--recipe", "tiny", *now, "models.m.endpoint.name=y")
    assert told.startswith("run holds a run with models.m.endpoint.name=x, not y")
