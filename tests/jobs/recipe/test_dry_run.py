"""A dry run shows what would be done and what is missing, raises what a real run would raise, and touches nothing."""

import io
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.learner.config import LearnerConfig, LoraConfig, ModelConfig
from actors.learner.model.load import load_model
from actors.learner.sizes import architecture
from cluster.resources import Demand
from coa.config import load
from coa.errors import UserError
from coa.learning.algorithms.base import Needs
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig, Schedule
from coa.planning.memory import (
    SUB_GROUP_ELEMENTS,
    engine_bytes,
    rank_memory,
    shared_memory_bytes,
    trained_parameters,
)
from coa.tasks.loading import load_tasks
from coa.teams.store import write_transcripts
from coa.teams.transcript import AgentStep, Ending, Graded, Transcript
from coa.types import Task
from jobs.cli import COMMANDS, command_of
from jobs.commands.command import Job
from jobs.recipe.checks import check_engines
from jobs.recipe.dry_run import Section, dry_run, plan_of, rate
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from tests.support.families import tiny_config
from tests.support.tiny import make_model

GIB = 2**30
ANSWER = (AgentStep("solver", "<answer> b</answer>"),)


def recipe(name: str, *overrides: str) -> Recipe:
    return load(Recipe, find_recipe(name), overrides)


STAGED = [name for name in COMMANDS if isinstance(job := command_of(name), Job) and job.stages]


def job_of(name: str) -> Job:
    job = command_of(name)
    assert isinstance(job, Job)
    return job


def section(config: Recipe, title: str, job: str = "train") -> Section:
    return next(one for one in plan_of(config, job_of(job)) if one.title.startswith(title))


def cells(found: Section) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in found.rows}


def test_a_plan_tells_each_stage_with_its_sizes_and_what_is_done(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "distill.json").write_text("{}")
    config = recipe("tiny", f"run_dir={tmp_path}")
    assert section(config, "train").title == f"train: {tmp_path}"
    stages = cells(section(config, "train"))
    assert stages["distill"][1] == "done"
    assert stages["sft"] == ("700 steps of 64 demonstrations", "to do")
    assert stages["rl"][0].startswith("36 steps of 32 groups of 8: 9\u202f216 episodes")
    assert list(cells(section(config, "sft", "sft"))) == ["sft"]


def test_a_file_of_tasks_is_played_once(tmp_path: Path) -> None:
    shown = cells(section(recipe("tiny", f"tasks.path={tmp_path}/t.jsonl", "distill.runs=null"), "train"))
    assert shown["distill"][0].startswith("a team run for each training task")


def test_data_sets_take_the_place_of_distillation(tmp_path: Path) -> None:
    stages = cells(section(recipe("web_32b", f"run_dir={tmp_path}"), "train"))
    assert stages["distill"][1] == "left out: sft.data is set"
    assert stages["sft"][0] == "2.5 epochs of 256 demonstrations"


def test_without_fine_tuning_reinforcement_begins_at_the_recipes_model(tmp_path: Path) -> None:
    shown = cells(section(recipe("web_32b", f"run_dir={tmp_path}", "sft.epochs=null", "sft.steps=0"), "train"))
    assert shown["distill"][1] == "left out: sft.steps is 0"
    taught = "sft.data=[]"
    shown = cells(section(recipe("web_32b", f"run_dir={tmp_path}", "sft.epochs=null", "sft.steps=0", taught), "train"))
    assert shown["distill"][1] == "left out: sft.steps is 0"
    assert shown["sft"] == ("reinforcement begins at Qwen/Qwen2.5-32B-Instruct", "left out: sft.steps is 0")


def test_a_plan_tells_the_learners_settings_side_by_side() -> None:
    found = section(recipe("web_32b"), "learners")
    assert found.columns == ("", "sft", "rl")
    assert cells(found)["ZeRO stage"] == ("3", "3")
    assert cells(found)["learning rate"] == ("1.4e-05 cosine, warm-up 10 %", "1e-06 constant, warm-up 3 steps")
    assert cells(found)["clip range"] == ("-", "0.2 / 0.28")
    assert section(recipe("web_32b"), "learners", "rl").columns == ("", "rl")


def test_a_plan_tells_of_a_model_that_gets_one_sample_at_a_time(tmp_path: Path) -> None:
    tiny_config("phi3").save_pretrained(tmp_path)
    shown = cells(section(recipe("own_tasks", f"model.path={tmp_path}"), "learners"))
    assert shown["tokens of a micro-batch"][1].startswith("one sample, at most ")
    assert shown["tokens with which samples begin alike"] == ("computed for each sample",) * 2


@pytest.mark.parametrize(
    ("name", "told"),
    [("gspo", "0.0003 / 0.0004 of a sequence"), ("cispo", "0 to 5, of the weight"), ("imitation", "-")],
)
def test_the_clip_range_is_that_of_the_algorithm(name: str, told: str) -> None:
    config = recipe("web_32b", f"rl.algorithm={name}", "rl.learner.loss.dual_clip=null")
    assert cells(section(config, "learners"))["clip range"] == ("-", told)


def test_rates_in_words() -> None:
    assert rate(OptimizerConfig(lr=1e-6)) == "1e-06 constant"
    assert rate(OptimizerConfig(lr=0.003, flat_share=0.3)) == "0.003 flat for 0.3 of the steps, then linear"
    assert rate(OptimizerConfig(lr=1.0, schedule=Schedule.linear, warmup_ratio=0.285)) == "1 linear, warm-up 28.5 %"


def test_services_keys_and_files_are_listed_with_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SERPER_API_KEY", "very-secret")
    monkeypatch.delenv("JINA_API_KEY", raising=False)
    data = tmp_path / "chains.json"
    data.write_text("[]")
    found = section(recipe("web_7b", f"sft.data=[{data},{tmp_path}/none.json]"), "services")
    states = {what: state for _, what, state in found.rows}
    assert states["$SERPER_API_KEY"] == "set"
    assert states["$JINA_API_KEY"] == "MISSING"
    assert states["https://google.serper.dev/search"] == "not asked"
    assert states[str(data)] == "there"
    assert states[f"{tmp_path}/none.json"] == "MISSING"
    assert "very-secret" not in str(found)
    assert ("judge", "tools.judge.url", "MISSING") in section(
        recipe("tiny", "rl.reward.formula=judge"), "services"
    ).rows


def judge_of(*settings: str) -> str | None:
    """What the plan says of the judge."""
    return {what: state for _, what, state in section(recipe("tiny", *settings), "services").rows}.get(
        "tools.judge.url"
    )


def test_a_judge_that_the_tasks_need_is_listed(tmp_path: Path) -> None:
    rows = tmp_path / "tasks.jsonl"
    of_rows = f"tasks.path={rows}"
    rows.write_text('{"question": "a ?", "answer": "b"}\n')
    assert judge_of() is None
    assert judge_of(of_rows) is None
    assert judge_of(of_rows, "tasks.profile=web") == "MISSING"
    assert judge_of(of_rows, "tasks.profile=web", "tasks.grader=f1") is None
    assert judge_of(of_rows, "tasks.profile=web", "tools.judge.url=http://127.0.0.1:1/v1") is None
    rows.write_text('{"question": "a ?", "answer": "b", "grader": "exact"}\n')
    assert judge_of(of_rows, "tasks.profile=web") is None
    rows.write_text('{"question": "a ?", "answer": "b", "profile": "web"}\n')
    assert judge_of(of_rows, "tasks.profile=mhqa") == "MISSING"
    rows.unlink()
    assert judge_of(of_rows, "tasks.profile=web") == "not known whether needed"


@pytest.mark.parametrize("folder", [False, True])
def test_the_tasks_are_read_once_and_again_when_they_change(
    folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def load_and_count(path: str, **asked: Any) -> tuple[Task, ...]:
        read.append(path)
        return load_tasks(path, **asked)

    monkeypatch.setattr("coa.tasks.file_tasks.load_tasks", load_and_count)
    file = tmp_path / "tasks.jsonl"
    settings = (f"tasks.path={tmp_path if folder else file}", "team.model=own")
    file.write_text('{"question": "a ?", "answer": "b"}\n')
    assert judge_of(*settings) is None
    assert judge_of(*settings) is None
    assert len(read) == 1
    assert judge_of(*settings, "tasks.profile=web") == "MISSING"
    assert judge_of(*settings, "tasks.profile=web", "tasks.grader=f1") is None
    assert len(read) == 3
    file.write_text('{"question": "a ?", "answer": "b", "profile": "web"}\n')
    assert judge_of(*settings) == "MISSING"
    before = file.stat().st_mtime_ns
    file.write_text('{"question": "a ?", "answer": "b", "grader": "exact"}')
    os.utime(file, ns=(before, before + 1))
    assert judge_of(*settings) is None
    file.unlink()
    assert judge_of(*settings) == "not known whether needed"


def test_transcripts_that_are_given_take_the_teams_place(tmp_path: Path) -> None:
    task = Task(id="t", question="?", answers=("b",), profile="multi", family="f", grader="judge")
    transcript = Transcript(task=task, attempt=0, seed=0, steps=ANSWER, ending=Ending.ANSWERED)
    path = tmp_path / "runs.parquet"
    write_transcripts(path, [Graded(transcript, None)])
    settings = (f"distill.transcripts={path}", f"tasks.path={tmp_path}/t.jsonl")
    told = cells(section(recipe("tiny", *settings), "train"))["distill"][0]
    assert told.startswith(f"the transcripts in {path}, no team runs; ")
    needs = section(recipe("tiny", *settings[:1]), "services").rows
    assert ("distill.transcripts", str(path), "there") in needs
    assert judge_of(*settings[:1]) == "MISSING"
    assert judge_of(*settings[:1], "tasks.grader=exact") is None


def test_a_program_that_is_taught_is_told() -> None:
    taught = ("agent.program.function=docs.examples.two_calls:run", "team.model=big", "distill.runs=300")
    told = cells(section(recipe("tiny", *taught), "train"))["distill"][0]
    assert told.startswith("300 team runs, by the program, answered by big")


def test_the_teachers_models_are_listed_with_their_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STRONG_KEY", raising=False)
    endpoint = "models.strong.endpoint"
    settings = (
        f"{endpoint}.url=https://user:pw@api.example.com/v1",
        f"{endpoint}.name=big",
        f"{endpoint}.key_env=STRONG_KEY",
    )
    found = section(recipe("tiny", *settings, "models.own.serve.model=Qwen/Qwen3-8B"), "services")
    assert ("models.strong", "$STRONG_KEY", "MISSING") in found.rows
    assert ("models.own", "Qwen/Qwen3-8B, served here", "not started") in found.rows
    [where] = [what for name, what, state in found.rows if name == "models.strong" and state == "not asked"]
    assert where.startswith("big at https://")
    assert "pw" not in where


def test_what_teachers_add_to_reinforcement_is_told() -> None:
    settings = ("rl.on_policy.teacher=runs/big/model", "rl.teacher_fallback.attempts=1")
    found = cells(section(recipe("tiny", *settings), "train"))
    assert "scored by runs/big/model; the team plays tasks that no episode solved" in found["rl"][0]
    resources = cells(section(recipe("tiny", *settings), "resources"))
    assert resources["rl: 1 rollout engine, 1 tool executor, 1 learner rank, 1 scorer"] == ("2", "0")


def test_resources_in_words_and_numbers() -> None:
    resources = cells(section(recipe("web_32b"), "resources"))
    assert resources == {
        "sft: 8 tool executors, 32 learner ranks": ("136", "32"),
        "rl: 4 rollout engines, 8 tool executors, 32 learner ranks": ("152", "64"),
    }
    assert cells(section(recipe("web_32b"), "resources", "sft")) == {"sft: 32 learner ranks": ("128", "32")}


def test_engines_that_come_and_go_are_told_as_a_range_and_counted_at_their_most() -> None:
    elastic = recipe("tiny", "placement.engines=2", "placement.min_engines=1", "placement.max_engines=3")
    resources = cells(section(elastic, "resources"))
    assert resources["rl: 1 to 3 rollout engines, 1 tool executor, 1 learner rank"] == ("3.75", "0")
    elastic = recipe("tiny", "placement.max_tool_executors=3")
    resources = cells(section(elastic, "resources"))
    assert resources["rl: 1 rollout engine, 1 to 3 tool executors, 1 learner rank"] == ("2.25", "0")


@pytest.mark.parametrize(
    "wrong",
    [
        ("placement.max_engines=0",),
        ("placement.min_engines=2",),
        ("placement.min_engines=0", "placement.max_engines=2"),
        ("placement.engines=4", "placement.max_engines=3"),
        ("placement.max_tool_executors=0",),
        ("placement.min_tool_executors=2",),
        ("placement.tool_executors=4", "placement.max_tool_executors=3"),
    ],
)
def test_a_range_of_engines_or_executors_without_sense_is_a_mistake(wrong: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"placement\.(engines|tool_executors) is"):
        check_engines(recipe("tiny", *wrong))


SERVED = ("models.own.serve.model=Qwen/Qwen3-8B", "models.own.serve.gpus=2", "team.model=own")


def gpus(job: str, *settings: str) -> dict[str, str]:
    rows = section(recipe("tiny", *settings), "resources", job).rows
    return {what.partition(":")[0]: count for what, _, count in rows}


def test_models_that_are_served_for_teachers_are_counted_where_teachers_play() -> None:
    assert gpus("train", *SERVED) == {"distill": "2", "sft": "0", "rl": "0"}
    assert gpus("train", *SERVED, "rl.teacher_fallback.attempts=1") == {"distill": "2", "sft": "0", "rl": "2"}
    assert gpus("rl", *SERVED, "rl.teacher_fallback.attempts=1") == {"rl": "2"}
    assert gpus("distill", *SERVED[:-1], "distill.obedience.model=own") == {"distill": "2"}
    assert gpus("distill", *SERVED[:-1]) == {"distill": "0"}
    assert gpus("distill", "team.model=nobody") == {"distill": "0"}, "the check refuses it, below the plan"


def test_a_team_that_is_not_known_is_told_as_such() -> None:
    assert gpus("distill", *SERVED, "tasks.path=nowhere.jsonl") == {"distill": "-"}


@pytest.mark.parametrize("job", STAGED)
@pytest.mark.parametrize(
    "settings", [(), SERVED, (*SERVED, "rl.teacher_fallback.attempts=1", "rl.on_policy.teacher=a/b")]
)
def test_a_plan_asks_for_what_the_run_asks_for(
    job: str, settings: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[list[Demand]] = []

    def session(config: Recipe, console: Console, body: object, *, demands: list[list[Demand]]) -> None:
        asked.extend(demands)

    monkeypatch.setattr(f"jobs.commands.{job}.in_session", session)
    config = recipe("tiny", f"run_dir={tmp_path / 'run'}", *settings)
    job_of(job).run(config, Console(io.StringIO(), io.StringIO()))
    sums = [tuple(sum(d.resources.get(name, 0) for d in demands) for name in ("CPU", "GPU")) for demands in asked]
    rows = section(config, "resources", job).rows
    assert [(float(cpus), float(count)) for _, cpus, count in rows] == sums


def test_the_plan_is_shown_before_what_stands_in_the_way_is_raised(tmp_path: Path) -> None:
    def refuse(config: Recipe) -> None:
        raise UserError("no such file")

    out, train = io.StringIO(), replace(job_of("train"), check=refuse)
    with pytest.raises(UserError, match="no such file"):
        dry_run(recipe("tiny", f"run_dir={tmp_path / 'run'}"), train, Console(out, out), {}, ask=False)
    shown = out.getvalue()
    assert "700 steps of 64 demonstrations" in shown
    assert "nothing was started" not in shown
    dry_run(recipe("tiny", f"run_dir={tmp_path / 'run'}"), job_of("train"), Console(out, out), {}, ask=False)
    assert "nothing was started" in out.getvalue()
    assert not (tmp_path / "run").exists()


def test_a_model_that_is_here_is_counted_and_another_is_only_named(tmp_path: Path) -> None:
    make_model(tmp_path)
    real = sum(p.numel() for p in load_model(tmp_path, ModelConfig()).parameters())
    found = architecture(ModelConfig(path=str(tmp_path)))
    assert found is not None
    assert found.parameters == real
    assert architecture(ModelConfig(path="nobody/has-this-model")) is None
    model = cells(section(recipe("web_7b", "model.path=nobody/has-this-model"), "model"))
    assert model["parameters"] == (
        "not known here: its configuration is neither on this machine nor among the published ones",
    )
    assert model["from"] == ("nobody/has-this-model",)


def test_memory_of_the_published_32b() -> None:
    """32.8 billion parameters by its card."""
    built = architecture(ModelConfig(path="Qwen/Qwen2.5-32B-Instruct"))
    assert built is not None
    n = built.parameters
    assert round(n / 1e9, 1) == 32.8
    rows = PackingConfig(row_tokens=32768, rows=1)
    fitting = LearnerConfig(ranks=16, zero_stage=3, gradient_checkpointing=True, packing=rows)
    inputs, share = 2 * 64 * 32768 * 5120, n // 16
    found = rank_memory(built, fitting, "bfloat16", bucket_bytes=64 * 2**20)
    assert found.device["weights"] == 2 * n // 16
    assert found.device["masters"] + found.device["moments"] + found.device["gradients"] == 16 * share
    assert inputs < found.device["activations"] < 1.6 * inputs
    assert 65 < found.on_device / GIB < 75, "tight on a device of 80 GB"
    assert found.host["snapshot"] == 12 * share
    shared = rank_memory(built, replace(fitting, sequence_parallel=4), "bfloat16", bucket_bytes=64 * 2**20)
    assert shared.device["activations"] * 4 == found.device["activations"]
    assert {**shared.device, "activations": 0} == {**found.device, "activations": 0}
    offloaded = replace(fitting, offload_optimizer=True, offload_parameters=True)
    beside = rank_memory(built, offloaded, "bfloat16", bucket_bytes=64 * 2**20)
    assert beside.on_device + beside.on_host == found.on_device + found.on_host
    assert found.on_device - beside.on_device == 2 * n // 16 + 12 * share + 4 * SUB_GROUP_ELEMENTS
    with_reference = rank_memory(built, fitting, "bfloat16", needs=Needs(reference=True))
    assert with_reference.on_device - found.on_device == 2 * n // 16
    adapters = LearnerConfig(zero_stage=2, lora=LoraConfig(rank=8, targets=("q_proj",)))
    assert trained_parameters(built, adapters) == 64 * 8 * (5120 + 5120)
    assert rank_memory(built, adapters, "bfloat16", needs=Needs(reference=True)).device["reference"] == 0
    assert engine_bytes(built, "bfloat16", 8) == n // 4
    assert shared_memory_bytes(built, "bfloat16") == 3 * 2 * n
