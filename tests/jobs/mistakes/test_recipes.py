"""Mistakes in a recipe or its settings: one line names them, and nothing is written."""

import json
from pathlib import Path

import pytest

from coa.config import load
from coa.errors import UserError
from jobs.recipe.checks import check_run, refuse_program
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from tests.support.mistakes import ROW, mistake, tasks_file


def test_an_unknown_key_names_the_nearest(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = mistake(capfd, "train", "--recipe", "tiny", "rl.windw.max_staleness=1")
    assert "unknown key rl.windw" in told
    assert "nearest known key is rl.window" in told
    assert list(here.iterdir()) == []


def test_a_missing_recipe(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert mistake(capfd, "train", "--recipe", "./gone.yaml") == "recipe gone.yaml: No such file or directory"


@pytest.mark.parametrize("words", [("train", "run_dir=s3://bucket/run"), ("rl", "run_dir=file:///tmp/run")])
def test_a_runs_folder_at_an_address(words: tuple[str, str], here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A path of it would be a folder here."""
    told = mistake(capfd, words[0], "--recipe", "tiny", words[1])
    assert told == (
        f"{words[1]}: run_dir is the URL {words[1][8:]}, expected a path on this machine; only checkpoints.storage may"
        " be at an address"
    )
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["checkpoints.storage=nowhere://a"], "checkpoints can't be kept in nowhere://a: Unrecognized filesystem type"),
        (["checkpoints.storage=a/b"], "checkpoints can't be kept in a/b: URI has empty scheme"),
        (["checkpoints.keep=0"], "checkpoints.keep is 0, expected at least 1"),
        (["checkpoints.keep_best=true"], "checkpoints.keep_best needs rl.evaluate_every, as a multiple of "),
    ],
)
def test_checkpoints_that_can_not_be_kept(
    settings: list[str], told: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", *settings).startswith(told)
    assert list(here.iterdir()) == []


def test_a_folder_of_the_run_that_can_not_be_replaced_at_its_end(here: Path) -> None:
    Path("run").mkdir()
    Path("run/model").symlink_to("gone/model")
    with pytest.raises(UserError, match=r"^run/model leads to .*/run/gone/model, which can't be written: there is no"):
        check_run(load(Recipe, find_recipe("tiny"), ["run_dir=run"]))
    assert list(Path("run").iterdir()) == [Path("run/model")]


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
    assert told == "model.path gone: no model there (no config.json)"
    assert [path.name for path in here.iterdir()] == ["tasks.jsonl"]


def test_no_fine_tuning_and_no_model_to_begin_with(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "sft.steps=0")
    assert told.startswith("sft.steps=0 leaves fine-tuning out: set model.path")
    told = mistake(capfd, "rl", "--recipe", "tiny", "run_dir=run")
    assert told == "run: no fine-tuned model is there yet: run `coa sft` first, or begin at model.path with sft.steps=0"
    assert mistake(capfd, "rl", "--recipe", "tiny", "sft.steps=-1") == "sft.steps is -1, expected at least 0"
    assert list(here.iterdir()) == []


def test_an_unreadable_model(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "model").mkdir()
    (here / "model" / "config.json").write_text("{not json")
    told = mistake(capfd, "evaluate", "--model", "model", "--tasks", str(tasks_file(here, ROW)))
    assert told.startswith("model/config.json: not JSON: ")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["rl.learner.ranks=3"], "rl.learner.sequence_parallel is 2, expected a divisor of ranks=3"),
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
        (["rl.window.max_staleness=1"], "needs rl.window.max_staleness=0, not 1"),
        (["rl.window.max_staleness=0", "placement.max_engines=4"], "can't be combined with engine autoscaling"),
    ],
)
def test_engines_that_take_turns_with_learners_and_do_not(
    here: Path, capfd: pytest.CaptureFixture[str], settings: list[str], said: str
) -> None:
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "engine.sleep_mode=true", *settings)
    assert told.startswith(f"engine.sleep_mode {said}")
    assert list(here.iterdir()) == []


def test_episodes_that_are_longest_at_first(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    short = ["agent.limits.max_tokens=1024", "rl.short_tokens=2048", "rl.short_steps=3"]
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", *short)
    assert told == "rl.short_tokens is 2048, more than agent.limits.max_tokens=1024"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("evaluation.tasks=0", "evaluation.tasks is 0, expected at least 1"),
        ("evaluation.tasks=2000", "evaluation.tasks=2000: the tiny world has fewer held-out questions"),
        ("world.held_out=0", "world.held_out=0.0 leaves no held-out tasks of some family"),
        ("world.held_out=1", "world.held_out=1.0 leaves no training tasks of some family"),
        ("distill.runs=0", "distill.runs is 0, expected at least 1"),
        ("distill.keep=0", "distill.keep is 0, expected at least 1"),
        ("teaching.wave=0", "teaching.wave is 0, expected at least 1"),
        ("teaching.runs_in_flight=0", "teaching.runs_in_flight is 0, expected at least 1"),
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


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.algorithm=grop", "unknown algorithm 'grop': known are grpo, dr_grpo, rloo, reinforce_pp, cispo, gspo"),
        ("rl.algorithm=dapo", "unknown algorithm 'dapo': here it is grpo with its default clip range, and"),
        ("rl.algorithm_settings.gamma=1", "rl.algorithm_settings: unknown key gamma; the nearest known key is"),
        ("rl.algorithm=on_policy", "rl.algorithm=on_policy: on_policy needs rl.on_policy.teacher"),
        ("rl.algorithm=imitation", "rl.algorithm=imitation trains on nothing that the policy sampled: set rl.teacher"),
        (
            "placement.engines=2 placement.engine_gpus=0.5",
            "placement.engine_gpus is 0.5 for 2 engines, expected 1 or more",
        ),
        ("placement.learner_gpus=0.5", "placement.learner_gpus is 0.5 for 2 ranks, expected 1 or more"),
        ("rl.sampling.top_p=0.9", "rl.sampling has temperature 1, top_p 0.9 and top_k 0: RL needs temperature"),
        ("rl.sampling.temperature=0", "rl.sampling has temperature 0, top_p 1 and top_k 0: RL needs temperature"),
        ("rl.sampling.top_k=5", "rl.sampling has temperature 1, top_p 1 and top_k 5: RL needs temperature"),
        ("rl.group=1", "rl.group is 1, expected at least 2"),
        ("rl.on_policy.teacher=./gone", "rl.on_policy.teacher gone: no model there (no config.json)"),
        ("rl.on_policy.teacher=a/b agent.grammar=enforce", "rl.on_policy.teacher needs agent.grammar=lenient"),
        ("rl.on_policy.teacher=a/b rl.sampling.temperature=0.7", "rl.on_policy.teacher needs agent.grammar=lenient"),
    ],
)
def test_what_nothing_can_be_learnt_by(here: Path, override: str, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", *override.split()).startswith(said)
    assert list(here.iterdir()) == []


def test_a_value_needs_no_group(here: Path) -> None:
    check_run(load(Recipe, find_recipe("tiny"), ["run_dir=run", "rl.algorithm=ppo", "rl.group=1"]))
    check_run(load(Recipe, find_recipe("tiny"), ["run_dir=run", "rl.sampling.temperature=0.7"]))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["sft.steps=0", "agent.program.command=[no-such-program]"], "no program 'no-such-program' is found"),
        (["sft.steps=0", "agent.program.function=no_such.agent:run"], "no_such.agent can't be imported"),
        (["agent.program.function=docs.examples.two_calls"], "expected MODULE:FUNCTION"),
        (
            ["agent.program.function=docs.examples.two_calls:run"],
            "a language model answers the program in distillation",
        ),
    ],
)
def test_programs(settings: list[str], told: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert told in mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", *settings)
    assert list(here.iterdir()) == []


def test_a_program_where_the_models_own_agent_answers() -> None:
    config = load(Recipe, find_recipe("tiny"), ["agent.program.function=docs.examples.two_calls:run"])
    with pytest.raises(UserError, match=r"agent\.program is for `coa train`, `coa rl` and `coa evaluate`"):
        refuse_program(config)
