"""Mistakes in the tools and the models that teachers use: one line names them, and nothing is written."""

from pathlib import Path

import pytest

from coa.config import load
from coa.errors import UserError
from jobs.recipe.checks import check_run
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from tests.support.mistakes import MODEL, evaluate, mistake, tasks_file


def test_tools_that_lead_nowhere_and_a_team_that_nobody_plays(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = tasks_file(here, *({"question": f"{n} ?", "answer": "x", "profile": "mhqa"} for n in range(20)))
    (here / "mine.yaml").write_text(f"run_dir: run\ntasks: {{path: {tasks}}}\n")
    assert mistake(capfd, "train", "--recipe", "./mine.yaml").startswith(
        "no model is set for the role critic: set team.model to"
    )
    (here / "rows.jsonl").write_text('{"instruction": "Who ?", "output": "Berg"}')
    told = mistake(capfd, "train", "--recipe", "./mine.yaml", "sft.data=[rows.jsonl]")
    assert told.startswith("a profile calls wiki_search, which is not configured: set tools.wiki.corpus or ")
    told = evaluate(capfd, here, "--tasks", str(tasks))
    assert told.startswith("a profile calls wiki_search, which is not configured: set tools.wiki.corpus or ")


def test_a_command_is_asked_for_what_its_own_stages_need(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = ({"question": f"{n} ?", "answer": "x", "profile": "web"} for n in range(20))
    settings = ["run_dir=run", f"tasks.path={tasks_file(here, *rows)}", "rl.on_policy.teacher=./gone"]
    check_run(load(Recipe, find_recipe("tiny"), settings), ("sft",))
    with pytest.raises(UserError, match=r"^a judge is needed to grade answers"):
        check_run(load(Recipe, find_recipe("tiny"), settings), ("distill",))
    monkeypatch.setenv("PATH", "")
    check_run(load(Recipe, find_recipe("tiny"), [*settings, "tasks.grader=exact"]), ("distill",))
    with pytest.raises(UserError, match=r"^programs need a sandbox .* bwrap is missing"):
        check_run(load(Recipe, find_recipe("tiny"), ["run_dir=run"]), ("distill",))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            [*MODEL, "models.m.endpoint.url=localhost:8000/v1"],
            "models.m.endpoint.url is localhost:8000/v1, expected an",
        ),
        ([*MODEL], "models.m: name an endpoint.url or a serve.model, one of the two"),
        (
            [*MODEL, "models.m.serve.model=here"],
            "models.m.endpoint.max_tokens is 4096, which leaves no room for a prompt in models.m.serve.max_mod",
        ),
        (
            [*MODEL, "models.m.endpoint.url=http://127.0.0.1:1/v1", "models.m.endpoint.key_env=NO_SUCH_KEY"],
            "the environment variable NO_SUCH_KEY is not set",
        ),
        (["team.model=gone"], "team: no model 'gone' for the"),
        (["team.roles.searcher.tools=[teleport]"], "team.roles.searcher.tools: no tool 'teleport' in code, mhqa, web"),
        (
            ["tools.judge.url=http://127.0.0.1:1/v1", "tools.judge.model=x", "tools.judge.key_env=NO_SUCH_KEY"],
            "the environment variable NO_SUCH_KEY is not set",
        ),
        (["team.roles.searcher.tools=[web_search]"], "team.roles.searcher.tools: none of them is a tool of mhqa"),
        (
            ["team.roles.refiner.duty=Refine."],
            "team.roles.refiner: a planner team does not use this role for these profiles",
        ),
        (
            ["team.roles.wizard.duty=Conjure."],
            "team.roles: no role 'wizard'; there",
        ),
        (["executor.call_s_of.teleport=3"], "executor sets a limit for teleport, which is not a tool; tools are code"),
        (["team.debaters=5"], "team.debaters has no effect with team.rules=planner; it is a setting of team.rules="),
        (["team.rules=debate", "team.thinker=true"], "team.thinker has no effect with team.rules=debate; it is a"),
        (["distill.transcripts=here"], "distill.transcripts: no transcripts at here"),
        (["sft.data=[rows.jsonl]"], "sft.data is set, so there is nothing to distil"),
    ],
)
def test_teachers_that_can_not_be_asked(
    here: Path, capfd: pytest.CaptureFixture[str], settings: list[str], told: str
) -> None:
    (here / "rows.jsonl").write_text('{"instruction": "Who ?", "output": "Berg"}')
    (here / "here").mkdir()
    assert mistake(capfd, "distill", "--recipe", "tiny", "run_dir=run", *settings).startswith(told)
    assert not (here / "run").exists()


def test_a_models_name_is_a_plain_word(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "dotted.yaml").write_text("models: {qwen2.5: {endpoint: {name: x}}}\n")
    told = mistake(capfd, "distill", "--recipe", "./dotted.yaml")
    assert told.endswith("models.qwen2.5: a name may have letters, digits, _ and -")
