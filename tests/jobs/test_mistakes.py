"""A user's mistakes, on the real command line: one clear line, exit status 2, nothing written."""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from coa.config import dump, load
from coa.errors import UserError
from coa.serving.config import ServingConfig
from jobs.cli import find_recipe, main
from jobs.recipe.checks import check_run
from jobs.recipe.schema import Recipe
from jobs.stages.serve import check_serving

ROW = {"question": "What is 2 + 3 ?", "answer": "5"}


def tasks_file(folder: Path, *rows: Mapping[str, object]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mistake(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that the command prints, without its `coa: `."""
    assert main(words) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.startswith("coa: ")
    assert told.err.endswith("\n")
    assert told.err.count("\n") == 1
    return told.err.removeprefix("coa: ").removesuffix("\n")


def test_an_unknown_key_names_the_nearest(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = mistake(capfd, "train", "--recipe", "tiny", "rl.windw.max_staleness=1")
    assert "unknown key rl.windw" in told
    assert "nearest known key is rl.window" in told
    assert list(here.iterdir()) == []


def test_a_missing_recipe(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert mistake(capfd, "train", "--recipe", "./gone.yaml") == "recipe gone.yaml: No such file or directory"


def test_an_unreadable_recipe(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "bad.yaml").write_text("rl: [1, 2\n")
    assert "bad.yaml: line" in mistake(capfd, "train", "--recipe", "./bad.yaml")
    (here / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    assert "bytes.yaml" in mistake(capfd, "train", "--recipe", "./bytes.yaml")


def test_a_file_of_data_in_place_of_a_recipe(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "rows.yaml").write_text(json.dumps([ROW] * 100))
    told = mistake(capfd, "train", "--recipe", "rows.yaml")
    assert told.startswith("rows.yaml: a recipe is [{'question': 'What is 2 + 3 ?', 'answer': '5'}, {")
    assert told.endswith("..., expected a section with keys")
    assert len(told) < 200
    (here / "rows.yaml").write_text(json.dumps([ROW] * 5000))
    told = mistake(capfd, "train", "--recipe", "rows.yaml")
    assert told.startswith("recipe rows.yaml: line 1: YAML node expansion exceeds")
    assert len(told) < 200
    (here / "notebook.ipynb").write_text(json.dumps({"cells": [], "nbformat": 4}))
    for name in ("notebook.ipynb", "./notebook.ipynb", "tasks.jsonl"):
        told = mistake(capfd, "train", "--recipe", name)
        assert told == f"recipe {name}: a recipe is a YAML file, whose name ends in .yaml or .yml"


def test_a_missing_model(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = tasks_file(here, ROW)
    told = mistake(capfd, "evaluate", "--model", "gone", "--tasks", str(tasks))
    assert told == "gone: no model there (no config.json)"
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "model.path=./gone")
    assert told == "model.path ./gone: no config.json there"
    assert [path.name for path in here.iterdir()] == ["tasks.jsonl"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rl.learner.ranks=3"], "learner.sequence_parallel is 2, expected a divisor of learner.ranks=3"),
        (
            ["model.heads=3", "model.key_value_heads=3"],
            "learner.sequence_parallel is 2, expected a divisor of the model's 3 attention heads",
        ),
        (
            ["model.path=Qwen/Qwen2.5-7B-Instruct", "rl.learner.ranks=8", "rl.learner.sequence_parallel=8"],
            "learner.sequence_parallel is 8, expected a divisor of the model's 28 attention heads",
        ),
        (
            ["model.attention=flex_attention"],
            "learner.sequence_parallel is 2, and model.attention flex_attention: expected one of sdpa, "
            "flash_attention_2, flash_attention_3",
        ),
    ],
)
def test_rows_that_ranks_can_not_share(
    here: Path, capfd: pytest.CaptureFixture[str], settings: list[str], said: str
) -> None:
    shared = ["rl.learner.ranks=2", "rl.learner.sequence_parallel=2"]
    assert mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", *shared, *settings).endswith(said)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rl.window.max_staleness=1"], "it needs rl.window.max_staleness=0, not 1"),
        (["rl.window.max_staleness=0", "placement.max_engines=4"], "leave out placement.min_engines"),
    ],
)
def test_engines_that_take_turns_with_learners_and_do_not(
    here: Path, capfd: pytest.CaptureFixture[str], settings: list[str], said: str
) -> None:
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "engine.sleep_mode=true", *settings)
    assert told.startswith("engine.sleep_mode has engines and learners take turns")
    assert said in told
    assert list(here.iterdir()) == []


def test_episodes_that_are_longest_at_first(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    short = ["agent.limits.max_tokens=1024", "rl.short_tokens=2048", "rl.short_steps=3"]
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", *short)
    assert told == "rl.short_tokens is 2048, more than agent.limits.max_tokens=1024"


def test_an_unreadable_model(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text("{not json")
    told = mistake(capfd, "evaluate", "--model", "model", "--tasks", str(tasks_file(here, ROW)))
    assert told.startswith("model: its config.json or agent.json can't be read")


def test_a_missing_or_unreadable_tasks_file(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "tasks.path=gone.jsonl")
    assert told.startswith("gone.jsonl: cannot be read")
    (here / "bad.parquet").write_text("not parquet")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "tasks.path=bad.parquet")
    assert told.startswith("bad.parquet: not a Parquet file")
    assert [path.name for path in here.iterdir()] == ["bad.parquet"]


def evaluate(capfd: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    """What `coa evaluate` says, with a model that is there."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text("{}")
    told = mistake(capfd, "evaluate", "--model", "model", *words)
    assert not (folder / "runs").exists()
    return told


def test_an_unknown_benchmark(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = evaluate(capfd, here, "--tasks", "olympiad")
    assert told == "no benchmark 'olympiad'; the nearest is olympiadbench (`coa benchmarks` lists them)"


def test_a_benchmark_that_cannot_be_fetched(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(here / "cache"))
    told = evaluate(capfd, here, "--tasks", "aime24")
    assert told.startswith("math-ai/aime24 can't be fetched from Hugging Face (NAME=PATH reads a copy): ")


def test_a_row_that_is_not_of_the_benchmark(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = tasks_file(here, {"problem": "1 + 1 ?", "answer": "2"}, {"problem": "1 + 2 ?"})
    told = evaluate(capfd, here, "--tasks", f"aime25={tasks}")
    assert told == f"{tasks}, line 2: no `answer`"


def test_a_judge_that_is_needed_and_not_set_up(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = evaluate(capfd, here, "--tasks", f"gaia={tasks_file(here, ROW)}")
    assert "tools.judge." in told


def test_tasks_of_the_web_want_a_judge_or_another_grader(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tasks_file(here, *({"question": f"{n} ?", "answer": "x", "profile": "web"} for n in range(20)))
    settings = ["run_dir=run", f"tasks.path={path}"]
    told = mistake(capfd, "train", "--recipe", "tiny", *settings)
    assert told.startswith("a judge is needed to grade answers: set tools.judge.url")
    check_run(load(Recipe, find_recipe("tiny"), [*settings, "tasks.grader=exact"]))
    for key, known in (("grader", "exact, exact_first, f1"), ("profile", "code, math, mhqa")):
        told = mistake(capfd, "train", "--recipe", "tiny", *settings, f"tasks.{key}=exat")
        assert told.startswith(f"tasks.{key} is 'exat': known are {known}")


@pytest.mark.parametrize("setting", ["samples=0", "temperature=-1", "top_p=0", "top_p=1.5"])
def test_decoding_that_cannot_be(here: Path, capfd: pytest.CaptureFixture[str], setting: str) -> None:
    told = evaluate(capfd, here, "--tasks", str(tasks_file(here, ROW)), f"evaluation.{setting}")
    assert told.startswith(f"evaluation.{setting}: samples ")


def test_nothing_to_choose_from(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = str(tasks_file(here, ROW))
    assert evaluate(capfd, here, "--tasks", tasks, "--best-of", "1").startswith("--best-of 1: there is nothing to ")
    told = "tasks is decoded greedily, and all of its attempts are the same: set evaluation.temperature"
    assert evaluate(capfd, here, "--tasks", tasks, "--best-of", "3", "evaluation.temperature=0") == told
    nq = tasks_file(here, {"question": "Who ?", "golden_answers": ["x"]})
    assert evaluate(capfd, here, "--tasks", f"nq={nq}", "--best-of", "3").startswith("nq is decoded greedily")


def test_a_judge_that_the_executor_would_stop(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    judge = ("tools.judge.url=http://127.0.0.1:1/v1", "tools.judge.model=m", "executor.call_s_of.chooser=5")
    told = evaluate(capfd, here, "--tasks", str(tasks_file(here, ROW)), "--best-of", "3", *judge)
    assert told.endswith("the executor stops it after 5 s: set executor.call_s_of.chooser")


def test_a_model_without_a_world_and_no_tasks(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = evaluate(capfd, here)
    assert told == "--tasks is needed: the model's training world has no tasks of its own (world.json)"


def test_a_row_without_an_answer_names_file_and_line(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = tasks_file(here, ROW, {"question": "What is 4 + 4 ?"})
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", f"tasks.path={tasks}")
    assert told.startswith(f"{tasks}, line 2: no `answer`")


def test_a_recipe_without_tasks(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "mine.yaml").write_text("run_dir: run\n")
    told = mistake(capfd, "train", "--recipe", "./mine.yaml")
    assert told == "there are no tasks: set tasks.path to a file of yours, or tasks.world to one of tiny"


def test_tools_that_lead_nowhere_and_a_team_that_nobody_plays(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = tasks_file(here, *({"question": f"{n} ?", "answer": "x", "profile": "mhqa"} for n in range(20)))
    (here / "mine.yaml").write_text(f"run_dir: run\ntasks: {{path: {tasks}}}\n")
    assert mistake(capfd, "train", "--recipe", "./mine.yaml").startswith(
        "no model is set for the role critic: set team.model to"
    )
    told = mistake(capfd, "train", "--recipe", "./mine.yaml", f"sft.data=[{tasks}]")
    assert told.startswith("a profile calls wiki_search, which is not configured: set tools.wiki.corpus or ")
    told = evaluate(capfd, here, "--tasks", str(tasks))
    assert told.startswith("a profile calls wiki_search, which is not configured: set tools.wiki.corpus or ")


def test_a_stage_before_its_time(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "run `coa distill` first" in mistake(capfd, "sft", "--recipe", "tiny", "run_dir=run")
    assert "run `coa sft` first" in mistake(capfd, "rl", "--recipe", "tiny", "run_dir=run")


def begin(here: Path, *overrides: str) -> None:
    """A run that was begun with these settings."""
    (here / "run").mkdir(exist_ok=True)
    config = load(Recipe, find_recipe("tiny"), ["run_dir=run", *overrides])
    (here / "run" / "config.yaml").write_text(dump(config))


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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no tasks in it"),
        ("hello\n", "line 1: not JSON: Expecting value at column 1"),
        ('{"question": "?", "answer": "x", "profile": "wizard"}', "line 1: unknown profile 'wizard': known are code, "),
        ('{"question": "?", "answer": "x", "grader": "guess"}', "line 1: unknown grader 'guess': known are exact, "),
    ],
)
def test_a_tasks_file_that_holds_none(here: Path, capfd: pytest.CaptureFixture[str], content: str, said: str) -> None:
    (here / "t.jsonl").write_text(content)
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "tasks.path=t.jsonl")
    assert re.match(rf"t\.jsonl[:,] {re.escape(said)}", told)


@pytest.mark.parametrize(("share", "training", "held_out"), [("0", 3, 0), ("1", 0, 3), ("0.1", 3, 0)])
def test_a_held_out_share_that_leaves_nothing(
    here: Path, capfd: pytest.CaptureFixture[str], share: str, training: int, held_out: int
) -> None:
    path = tasks_file(here, *(ROW | {"question": f"{n} ?"} for n in range(3)))
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", f"tasks.path={path}", f"tasks.held_out={share}")
    assert told == (
        f"tasks.held_out={share} of the 3 tasks of {path} leaves {training} to train on and {held_out} held out; both "
        "are needed"
    )


def test_a_setting_that_is_left_out_is_another_setting(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    begin(here, "team.roles.critic.duty=Doubt everything.")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert told.startswith("run holds a run with team.roles.critic.")


def test_a_run_of_older_names_goes_on_and_one_that_is_not_understood_is_one_line(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    begin(here)
    path = here / "run" / "config.yaml"
    old = path.read_text().replace("teacher_fallback:", "rescue:").replace("grammar: lenient", "grammar: forgive")
    assert old.count("rescue:") == old.count("forgive") == 1
    path.write_text(old.replace("    max_tag_tokens: null\n", ""))
    check_run(load(Recipe, find_recipe("tiny"), ["run_dir=run"]))
    path.write_text(old + "lost: 1\n")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert told.startswith("run holds a run that this version of coa can't resume (run/config.yaml: unknown key lost")
    path.write_text("rl: [1, 2\n")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert told.startswith("run holds a run that this version of coa can't resume (recipe run/config.yaml: line 2: ")


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
    ("setting", "said"),
    [
        ("evaluation.tasks=0", "evaluation.tasks is 0, expected more than 0"),
        ("evaluation.tasks=2000", "evaluation.tasks=2000: the tiny world has fewer held-out questions"),
        ("world.held_out=0", "world.held_out=0.0 leaves no held-out tasks of some family"),
        ("world.held_out=1", "world.held_out=1.0 leaves no training tasks of some family"),
        ("distill.runs=0", "distill.runs is 0, expected more than 0"),
        ("distill.keep=0", "distill.keep is 0, expected more than 0"),
        ("teaching.wave=0", "teaching.wave is 0, expected more than 0"),
        ("teaching.runs_in_flight=0", "teaching.runs_in_flight is 0, expected more than 0"),
    ],
)
def test_numbers_that_leave_nothing_to_do(
    here: Path, capfd: pytest.CaptureFixture[str], setting: str, said: str
) -> None:
    assert mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "world.companies=20", setting).startswith(said)
    assert not (here / "run").exists()


@pytest.mark.parametrize("words", [["train"], ["train", "--dry-run"]])
def test_a_number_that_no_run_can_have_is_refused_before_anything_is_looked_at(
    here: Path, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    told = mistake(capfd, *words, "--recipe", "tiny", "run_dir=run", "sft.learner.optimizer.lr=-1")
    assert told == "sft.learner.optimizer.lr is -1, expected at least 0"
    assert list(here.iterdir()) == []


def test_gpus_that_this_machine_has_not_are_refused_before_ray_starts(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("cluster.resources._gpus", lambda: 0)
    monkeypatch.setattr("cluster.session.start", lambda **_: pytest.fail("Ray was started"))
    words = ["train", "--recipe", "tiny", "run_dir=run", "placement.engine_gpus=2", "session.cpus=4"]
    told = mistake(capfd, *words)
    assert told.endswith("2 GPU in all, there are 4 CPU on 1 node; no room for a rollout engine of 1 CPU and 2 GPU")
    assert not (here / "run").exists()
    assert main([*words, "--dry-run"]) == 2
    assert capfd.readouterr().err == f"coa: {told}\n"


def test_a_malformed_address_of_a_cluster_is_found_by_a_dry_run_too(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "foo")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run")
    assert told == "the cluster's address 'foo' (RAY_ADDRESS) is not host:port, such as 10.0.0.7:6379"
    assert main(["train", "--recipe", "tiny", "run_dir=run", "--dry-run"]) == 2
    assert capfd.readouterr().err == f"coa: {told}\n"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert main(["train", "--recipe", "tiny", "run_dir=run", "--dry-run"]) == 0
    assert "no problem found, but the cluster at 127.0.0.1:1 was not asked;" in capfd.readouterr().out
    assert list(here.iterdir()) == []


def test_a_port_that_can_not_be_served_at(here: Path) -> None:
    with pytest.raises(UserError, match=r"^serving\.port is 70000, expected 0 to 65535$"):
        check_serving(ServingConfig(port=70000))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"^port {port} of 127\.0\.0\.1 is taken$"):
            check_serving(ServingConfig(port=port))


MODEL = ("models.m.endpoint.name=x", "team.model=m")


def test_a_model_may_be_asked_elsewhere_when_a_run_goes_on_but_no_other_one(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    at, elsewhere = (f"models.m.endpoint.url=http://127.0.0.1:{port}/v1" for port in (1, 2))
    begin(here, *MODEL, at)
    free = [f"models.m.endpoint.{name}=3" for name in ("concurrent", "max_retry_after_s", "max_tokens")]
    schemas = ["distill.obedience.schema=false", "tools.judge.schema=false"]
    now = ["run_dir=run", *MODEL, elsewhere, *free, *schemas, "models.m.serve.host=127.0.0.1"]
    check_run(load(Recipe, find_recipe("tiny"), now))
    told = mistake(capfd, "distill", "--recipe", "tiny", *now, "models.m.endpoint.name=y")
    assert told.startswith("run holds a run with models.m.endpoint.name=x, not y")


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
            f"{find_recipe('tiny')}, run_dir=run, team.roles.wizard.duty=Conjure.: team.roles: no role 'wizard'; there",
        ),
        (["executor.call_s_of.teleport=3"], "executor sets a limit for teleport, which is not a tool; tools are code"),
        (["team.debaters=5"], "team.debaters has no effect with team.rules=planner; it is a setting of team.rules="),
        (["team.rules=debate", "team.thinker=true"], "team.thinker has no effect with team.rules=debate; it is a"),
        (["distill.transcripts=here"], "distill.transcripts: no transcripts at here"),
        (["sft.data=[tasks.jsonl]"], "sft.data is set, so there is nothing to distil"),
    ],
)
def test_teachers_that_can_not_be_asked(
    here: Path, capfd: pytest.CaptureFixture[str], settings: list[str], told: str
) -> None:
    (here / "tasks.jsonl").write_text("")
    (here / "here").mkdir()
    assert mistake(capfd, "distill", "--recipe", "tiny", "run_dir=run", *settings).startswith(told)
    assert not (here / "run").exists()


def test_a_models_name_is_a_plain_word(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "dotted.yaml").write_text("models: {qwen2.5: {endpoint: {name: x}}}\n")
    told = mistake(capfd, "distill", "--recipe", "./dotted.yaml")
    assert told.endswith("models.qwen2.5: a name may have letters, digits, _ and -")


def test_more_than_the_cluster_has(here: Path) -> None:
    command = [sys.executable, "-m", "jobs.cli", "train", "--recipe", "tiny", "run_dir=run", "session.cpus=2"]
    done = subprocess.run([*command, "placement.engines=3"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "coa: the recipe needs more than the cluster has or can add: 3.75 CPU in all, there are 2 CPU on 1 node; "
        "no room for a rollout engine of 1 CPU\n"
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.algorithm=grop", "unknown algorithm 'grop': known are grpo, dr_grpo, rloo, reinforce_pp, cispo, gspo"),
        ("rl.algorithm_settings.gamma=1", "rl.algorithm_settings: unknown key gamma; the nearest known key is"),
        ("rl.algorithm=on_policy", "rl.algorithm=on_policy: a teacher in rl.on_policy.teacher goes with on_policy"),
        ("rl.sampling.top_p=0.9", "rl.sampling has temperature 1 and top_p 0.9: log-probs can follow"),
        ("rl.sampling.temperature=0", "rl.sampling has temperature 0 and top_p 1: log-probs can follow"),
        ("rl.group=1", "rl.group is 1, expected at least 2"),
        ("rl.on_policy.teacher=./gone", "rl.on_policy.teacher ./gone: no config.json there"),
        ("rl.on_policy.teacher=a/b agent.grammar=enforce", "rl.on_policy compares plain log-probs"),
        ("rl.on_policy.teacher=a/b rl.sampling.temperature=0.7", "rl.on_policy compares plain log-probs"),
    ],
)
def test_what_nothing_can_be_learnt_by(here: Path, override: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", *override.split()).startswith(said)
    assert list(here.iterdir()) == []


def test_a_value_needs_no_group(here: Path) -> None:
    check_run(load(Recipe, find_recipe("tiny"), ["run_dir=run", "rl.algorithm=ppo", "rl.group=1"]))
    check_run(load(Recipe, find_recipe("tiny"), ["run_dir=run", "rl.sampling.temperature=0.7"]))
