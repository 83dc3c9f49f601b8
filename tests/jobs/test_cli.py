import json
import re
import shutil
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from coa.errors import UserError
from coa.storage.keeping import CheckpointsConfig
from jobs import cli
from jobs.commands import evaluate, train
from jobs.commands.command import Job
from jobs.recipe.findings import Findings


@dataclass(frozen=True)
class Recipe:
    run_dir: str = "runs/test"
    steps: int = 1
    checkpoints: CheckpointsConfig = field(default_factory=CheckpointsConfig)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> SimpleNamespace:
    """Stand-ins for train and evaluate and for the recipe's schema; runs go to a temporary directory."""
    monkeypatch.chdir(tmp_path)
    schema = ModuleType("jobs.recipe.schema")
    schema.__dict__["Recipe"] = Recipe
    monkeypatch.setitem(sys.modules, "jobs.recipe.schema", schema)
    seen = SimpleNamespace(config=None, arguments=None, check=None, run=None)

    def run(config: Recipe, console: object, **arguments: object) -> None:
        seen.config, seen.arguments = config, arguments
        if seen.run:
            raise seen.run

    def check(config: Recipe, **arguments: object) -> Findings:
        if seen.check:
            raise seen.check
        return ()

    for module in (train, evaluate):
        monkeypatch.setattr(module, "COMMAND", replace(module.COMMAND, run=run, check=check))
    (tmp_path / "r.yaml").write_text("steps: 5\n")
    return seen


def test_a_job_gets_the_recipe_with_its_overrides(job: SimpleNamespace) -> None:
    assert cli.main(["train", "--recipe", "./r.yaml", "run_dir=runs/x"]) == 0
    assert job.config == Recipe(run_dir="runs/x", steps=5)
    assert Path("runs/x/logs/driver.log").exists()


def test_evaluate_gets_its_arguments(job: SimpleNamespace) -> None:
    assert cli.main(["evaluate", "--model", "m", "--tasks", "t.jsonl", "--rows", "3", "--out", "o", "steps=2"]) == 0
    assert job.config.steps == 2
    assert job.arguments == {
        "model": Path("m"),
        "tasks": "t.jsonl",
        "rows": 3,
        "out": Path("o"),
        "best_of": None,
        "against": None,
        "overrides": ("steps=2",),
    }
    assert Path("o/logs/driver.log").exists()
    assert cli.main(["evaluate", "--model", "m", "--best-of", "3"]) == 0
    assert (job.arguments["tasks"], job.arguments["best_of"]) == (None, 3)


def test_an_evaluation_has_a_folder_of_its_own(job: SimpleNamespace) -> None:
    folders = list[Path]()
    again = ["--tasks", "a.jsonl", "--against", "before"]
    for words in (["--tasks", "a.jsonl"], ["--tasks", "a.jsonl", "--rows", "3"], again, ["steps=2"]):
        assert cli.main(["evaluate", "--model", "runs/demo/model", *words]) == 0
        folders.append(job.arguments["out"])
    first, second, again, other = folders
    assert first == again, "the same command resumes"
    assert re.fullmatch(r"runs/evaluate/demo-a-[0-9a-f]{8}", str(first))
    assert str(other).startswith("runs/evaluate/demo-held-out-")
    assert len({first, second, other}) == 3
    assert all((folder / "logs" / "driver.log").exists() for folder in folders)


@pytest.mark.parametrize("dry", [[], ["--dry-run"]])
def test_a_folder_that_cannot_be_a_runs_is_refused_before_anything_starts(
    job: SimpleNamespace, capfd: pytest.CaptureFixture[str], tmp_path: Path, dry: list[str]
) -> None:
    Path("taken").write_text("")
    Path("link").symlink_to("gone")
    for folder, reason in (
        ("taken", f"{tmp_path / 'taken'} is a file"),
        ("taken/run", f"{tmp_path / 'taken'} is a file"),
        ("link", f"{tmp_path / 'link'} is a link to gone, which is no folder"),
        ("/proc/1/fdinfo/run", "/proc/1/fdinfo is not writable"),
    ):
        assert cli.main(["train", "--recipe", "./r.yaml", f"run_dir={folder}", *dry]) == 2
        assert capfd.readouterr().err == f"coa: {folder} can't be a run's folder: {reason}\n"
    assert job.config is None


def test_a_folder_that_another_command_holds_is_left_alone(
    job: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    Path("runs/test").mkdir(parents=True)
    held = {"host": "elsewhere", "pid": 7, "since": "2026-11-23 00:12:14", "started": 1.0}
    Path("runs/test/lease.json").write_text(json.dumps(held))
    assert cli.main(["train", "--recipe", "./r.yaml"]) == 2
    who = "process 7 on elsewhere since 2026-11-23 00:12:14"
    assert capfd.readouterr().err == f"coa: runs/test is in use: by {who}; end it, or choose another folder\n"
    assert job.config is None
    assert [path.name for path in Path("runs/test").iterdir()] == ["lease.json"]
    assert cli.main(["train", "--recipe", "./r.yaml", "run_dir=runs/other"]) == 0
    assert [path.name for path in Path("runs/other").iterdir()] == ["logs"], "the lease goes with its holder"


def test_a_log_that_could_not_be_written_is_not_pointed_to(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        shutil.rmtree("runs/test/logs")
        Path("runs/test/logs").write_text("")
        raise RuntimeError("the disk failed")

    job.run = None
    monkeypatch.setattr(train, "COMMAND", replace(train.COMMAND, run=full))
    assert cli.main(["train", "--recipe", "./r.yaml"]) == 1
    assert capfd.readouterr().err == "coa: train failed: RuntimeError: the disk failed\n"


@pytest.mark.parametrize("overrides", [["stepz=1"], ["steps=x"], ["steps"]])
def test_a_mistake_is_one_line_and_leaves_nothing(
    job: SimpleNamespace, capfd: pytest.CaptureFixture[str], overrides: list[str]
) -> None:
    assert cli.main(["train", "--recipe", "./r.yaml", *overrides]) == 2
    error = capfd.readouterr().err
    assert error.startswith("coa: ")
    assert error.count("\n") == 1
    assert not Path("runs").exists()


def test_a_mistake_that_a_job_finds_before_it_starts_leaves_nothing(
    job: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    job.check = UserError("no such model")
    assert cli.main(["train", "--recipe", "./r.yaml"]) == 2
    assert capfd.readouterr().err == "coa: no such model\n"
    assert not Path("runs").exists()


def test_an_unknown_recipe_names_the_known(job: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--recipe", "nope"]) == 2
    assert capfd.readouterr().err.startswith("coa: no recipe nope: known are ")


def test_an_interruption_says_how_to_go_on(job: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    job.run = KeyboardInterrupt()
    assert cli.main(["train", "--recipe", "./r.yaml"]) == 130
    assert capfd.readouterr().err == "interrupted; the same command resumes\n"


def test_an_interrupted_job_without_a_folder_of_its_own_resumes_nothing(
    job: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(train, "COMMAND", replace(train.COMMAND, alone=False))
    job.run = KeyboardInterrupt()
    assert cli.main(["train", "--recipe", "./r.yaml"]) == 130
    assert capfd.readouterr().err == "interrupted\n"


def test_a_defect_is_one_line_and_its_traceback_is_in_the_log(
    job: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    job.run = RuntimeError("lost\nthe engine")
    assert cli.main(["train", "--recipe", "./r.yaml"]) == 1
    log = Path("runs/test/logs/driver.log")
    assert capfd.readouterr().err == f"coa: train failed: RuntimeError: the engine (see {log})\n"
    assert "Traceback (most recent call last)" in log.read_text()


def test_an_error_in_a_group_of_tasks_is_told_as_itself(
    job: SimpleNamespace, capfd: pytest.CaptureFixture[str]
) -> None:
    job.run = ExceptionGroup("unhandled errors in a TaskGroup", [UserError("the endpoint is not there")])
    assert cli.main(["train", "--recipe", "./r.yaml"]) == 2
    assert capfd.readouterr().err == "coa: the endpoint is not there\n"


def test_every_command_is_described_and_those_with_a_recipe_say_what_they_ask_for() -> None:
    assert list(cli.COMMANDS) == [
        *("train", "distill", "sft", "rl", "evaluate", "select", "tasks", "ask", "serve"),
        *("plan", "verify", "submit", "export", "keys", "record", "import", "show", "recipe", "doctor"),
    ]
    commands = {name: cli.command_of(name) for name in cli.COMMANDS}
    assert [command.name for command in commands.values()] == list(commands)
    jobs = {name: command for name, command in commands.items() if isinstance(command, Job)}
    assert list(jobs) == ["train", "distill", "sft", "rl", "evaluate", "select", "tasks", "ask", "serve"]
    assert all(line for line, _ in cli.COMMANDS.values())
    assert [name for name, job in jobs.items() if job.of_model] == ["evaluate", "select", "ask", "serve"]
    assert jobs["train"].stages == ("distill", "evaluation-base", "sft", "evaluation-sft", "rl", "evaluation-rl")


def test_failed_runs_are_tried_again_where_that_is_asked_for(job: SimpleNamespace) -> None:
    _, options = cli.parse(["distill", "--recipe", "x", "--retry-failed", "seed=2"])
    assert (options["overrides"], options["said"]) == (["seed=2"], ["distill.retry_failed=true"])
    assert "said" not in cli.parse(["sft", "--recipe", "x"])[1]


def test_benchmarks_are_listed(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["evaluate", "--benchmarks"])
    assert ended.value.code == 0
    told = capfd.readouterr()
    assert told.err == ""
    lines = [" ".join(line.split()) for line in told.out.splitlines()]
    assert "aime24 30 math avg@16 16 x T 0.6, 13 turns math math-ai/aime24 Apache-2.0" in lines
    assert {"gaia", "hle", "browsecomp", "codecontests"} < {line.partition(" ")[0] for line in lines}


def test_a_defect_of_a_check_is_one_line_too(job: SimpleNamespace, capfd: pytest.CaptureFixture[str]) -> None:
    job.check = PermissionError("tasks.jsonl may not be read")
    assert cli.main(["train", "--recipe", "./r.yaml"]) == 1
    log = Path("runs/test/logs/driver.log")
    assert capfd.readouterr().err == f"coa: train failed: PermissionError: tasks.jsonl may not be read (see {log})\n"
    assert "Traceback (most recent call last)" in log.read_text()


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["--rl.steps", "5"], "--rl.steps: a setting is written without dashes, rl.steps=5"),
        (["--rl.steps=5"], "--rl.steps=5: a setting is written without dashes, rl.steps=5"),
        (["--seed", "--dry-run"], "--seed: a setting is written without dashes, seed=VALUE"),
    ],
)
def test_a_setting_that_is_written_as_an_option_is_shown_as_it_is_written(
    capfd: pytest.CaptureFixture[str], words: list[str], right: str
) -> None:
    assert cli.main(["train", "--recipe", "tiny", *words]) == 2
    assert capfd.readouterr().err == f"coa: {right}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian", "--recipe", "tiny"], "argument COMMAND: invalid choice: 'trian' (choose from "),
        ([], "the following arguments are required: COMMAND (see coa --help)"),
        (["train"], "the following arguments are required: --recipe (see coa train --help)"),
        (["train", "--recipe", "tiny", "--steps", "5"], "unknown options: --steps (see coa train --help)"),
    ],
)
def test_words_that_are_no_command_are_one_line(capfd: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    assert cli.main(words) == 2
    told = capfd.readouterr().err
    assert told.startswith(f"coa: {said}")
    assert told.count("\n") == 1


def test_settings_may_stand_on_both_sides_of_an_option() -> None:
    _, options = cli.parse(["train", "--recipe", "tiny", "seed=1", "--dry-run", "rl.steps=5"])
    assert (options["overrides"], options["dry_run"]) == (["seed=1", "rl.steps=5"], True)


def test_a_question_comes_before_the_settings() -> None:
    words = ["ask", "--model", "m", "Who ?", "engine.threads=1", "--grammar", "enforce"]
    _, options = cli.parse(words)
    assert (options["question"], options["overrides"]) == ("Who ?", ["engine.threads=1"])
    assert (options["model"], options["profile"], options["grammar"]) == (Path("m"), None, "enforce")


def test_the_version_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["--version"])
    assert ended.value.code == 0
    assert re.fullmatch(r"coa \d+\.\d+\.\d+\n", capfd.readouterr().out)


def test_settings_are_told_by_section_by_word_and_with_the_values_of_a_recipe(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["recipe", "rl.window.max_staleness"]) == 0
    sentence = "    Maximum staleness of a trained token, in weight versions. 0 makes training synchronous.\n"
    assert capfd.readouterr().out == f"{'rl.window.max_staleness=2':<40}  int\n{sentence}"
    assert cli.main(["recipe", "--search", "STALE", "versions"]) == 0
    assert capfd.readouterr().out.startswith("rl.window.max_staleness=2 ")
    assert cli.main(["recipe", "world", "--search", "snippet", "names", "--recipe", "tiny"]) == 0
    assert capfd.readouterr().out.startswith("world.stale=0.65 ")
    assert cli.main(["recipe", "rl.windw"]) == 2
    assert capfd.readouterr().err.startswith("coa: no setting rl.windw; the nearest is rl.window (")
