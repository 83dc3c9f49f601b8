"""The distillation stage from end to end: where its transcripts come from, who reviews them, and what stops it."""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from actors.tools.remote import ToolClient
from coa.config import load
from coa.distill.contamination import Contamination
from coa.distill.dataset.shards import read_rows
from coa.distill.filters import Filter
from coa.distill.stages import FilterConfig
from coa.errors import InfrastructureError, UserError
from coa.llm.completions import Completion
from coa.teams.run import Assignment, FailedRun
from coa.teams.store import read_transcripts
from coa.teams.transcript import Graded
from coa.usage import Usage
from jobs.commands.import_runs import run as import_command
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import open_console
from jobs.run.distill_store import DistillStore
from jobs.run.run_dir import RunDir
from jobs.stages.distill import distill, goes_on, numbered, require_most
from jobs.stages.services import caution_about
from jobs.stages.sft import prepare
from jobs.teachers.review import Review
from tests.support.disks import NEEDS_ROOT, disk, full
from tests.support.endpoints import EndpointProcess, read_log
from tests.support.imported_runs import QUESTION
from tests.support.recordings import LOOP, agent, recording
from tests.support.teams import TASKS, WorldTools, play_one
from tests.support.tiny import sum_task
from tests.support.tokenizer_kinds import KINDS, LAYOUTS, write

RUNS = 12
EXPERTS = ("--reply", "tests.support.expert_replies:reply")
FAMILY = "world.families=[mhqa]"


@contextmanager
def run_in(folder: Path, *overrides: str) -> Iterator[RunDir]:
    settings = (f"run_dir={folder}", FAMILY, f"distill.runs={RUNS}", "teaching.reissues=0", *overrides)
    with open_console(folder.with_suffix(".log")) as console:
        run = RunDir(load(Recipe, find_recipe("tiny"), settings), console)
        run.prepare()
        yield run


def with_model(url: str, *overrides: str) -> tuple[str, ...]:
    endpoint = "models.m.endpoint"
    return (
        f"{endpoint}.url={url}",
        f"{endpoint}.name=expert",
        f"{endpoint}.attempts=2",
        f"{endpoint}.pause_s=0.01",
        *overrides,
    )


def distilled(run: RunDir) -> dict[str, Any]:
    import ray

    async def main() -> dict[str, Any]:
        handle: Any = ray.remote(WorldTools).options(num_cpus=0, max_concurrency=100).remote()
        try:
            return await distill(run, ToolClient(handle))
        finally:
            ray.kill(handle)

    return asyncio.run(main())


def names(run: RunDir) -> list[tuple[str, int]]:
    return sorted((one.transcript.task.id, one.transcript.attempt) for one in read_transcripts(run.teachers))


EVERY = sorted((f"distill-{index}", index) for index in range(RUNS))


def test_no_run_is_played_for_a_model_whose_tokenizer_can_not_be_used(tmp_path: Path) -> None:
    """A model of the hub is not on this machine when the recipe is checked."""
    model = write(KINDS["bytes, lossy"](), tmp_path / "model", LAYOUTS["chat marks"])
    with (
        run_in(tmp_path / "run", f"model.path={model}") as run,
        pytest.raises(UserError, match="its tokenizer writes ' Who \\? ' as 'Who\\?'"),
    ):
        asyncio.run(distill(run, ToolClient(cast(Any, None))))
    assert not list(read_transcripts(run.teachers))
    assert not run.tokenizer.exists()


def test_an_agent_recorded_through_the_recorder_is_distilled(ray_session: None, tmp_path: Path) -> None:
    async def record() -> None:
        async with recording(tmp_path / "recorded", *LOOP, *LOOP) as (url, _):
            await agent(f"{url}/session/run-1/v1", stream=True)
            await agent(f"{url}/session/run-2/v1", stream=False)

    asyncio.run(record())
    tasks = tmp_path / "tasks.jsonl"
    rows = [{"id": "owner", "question": QUESTION, "answer": "Berg"}]
    rows += [{"id": f"other-{i}", "question": f"Where is {i} ?", "answer": "x"} for i in range(9)]
    tasks.write_text("".join(f"{json.dumps({**row, 'profile': 'mhqa'})}\n" for row in rows))
    import_command("recorded", tmp_path / "recorded", str(tasks), tmp_path / "imported")
    settings = (f"tasks.path={tasks}", f"distill.transcripts={tmp_path / 'imported'}")
    with run_in(tmp_path / "run", *settings) as run:
        assert "owner" not in {task.id for task in run.evaluation_tasks()}
        result = distilled(run)
        assert (result["transcripts"], result["kept"]) == (2, 1), "the same chain for the same task comes once"
        assert result["dropped"] == {"same chain for the same task": 1}
        [row] = read_rows(run.data)
        assert (row.task.id, row.team, dict(row.models)) == ("owner", "recorded", {"research assistant": "m-1"})
        assert row.text.endswith("<answer> Berg</answer>")
        assert row.usage.tokens == 30


def test_a_budget_stops_the_stage_and_a_larger_one_goes_on(ray_session: None, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with EndpointProcess(*EXPERTS, "--log", str(log)) as endpoint:
        settings = with_model(endpoint.url, "team.model=m", "teaching.runs_in_flight=2")
        with run_in(tmp_path / "run", *settings, "teaching.budget.requests=25") as run:
            result = distilled(run)
            assert result["stopped"] == "budget"
            assert 0 < result["transcripts"] < RUNS
            sent = len(read_log(log))
            assert sent <= 25 + 2, "no request is sent once it is spent"
            assert result["requests"] == sent, "those of runs that are not finished count"
            assert distilled(run) == result
            assert len(read_log(log)) == sent, "nor when the same command is given again"
        with run_in(tmp_path / "run", *settings, "teaching.budget.requests=10000") as run:
            result = distilled(run)
            assert result["stopped"] is None
            assert names(run) == EVERY
        seen = read_log(log)
        assert len({one.id for one in seen}) == len(seen) == result["requests"], "nothing is paid for twice"


def command(folder: Path, *settings: str) -> list[str]:
    base = (f"run_dir={folder}", FAMILY, f"distill.runs={RUNS}", "teaching.shard_s=0.2", "team.model=m")
    return [sys.executable, "-m", "jobs.cli", "distill", "--recipe", "tiny", *base, *settings]


@pytest.mark.slow
def test_a_key_that_the_endpoint_refuses_is_a_persons_mistake(tmp_path: Path) -> None:
    with EndpointProcess(*EXPERTS, "--key", "sk-right") as endpoint:
        settings = with_model(endpoint.url, "models.m.endpoint.key_env=COA_TEST_KEY")
        environment = {**os.environ, "COA_TEST_KEY": "sk-wrong-0123456789"}
        done = subprocess.run(
            command(tmp_path / "run", *settings), env=environment, capture_output=True, text=True, check=False
        )
    assert done.returncode == 2, done.stderr
    told = done.stderr.splitlines()[-1]
    assert told.startswith("coa: ")
    assert "401" in told
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sk-wrong" not in written + (done.stdout + done.stderr).encode()


@pytest.mark.slow
@NEEDS_ROOT
def test_a_full_disk_ends_the_stage_with_a_line_that_says_so(tmp_path: Path) -> None:
    small, log = tmp_path / "small", tmp_path / "log.jsonl"
    with EndpointProcess(*EXPERTS, "--latency", "0.5", "--log", str(log)) as endpoint, disk(small, 32):
        words = command(small / "run", *with_model(endpoint.url))
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
            while len(read_log(log)) < RUNS:
                assert driver.poll() is None
                time.sleep(0.05)
            with full(small):
                _, error = driver.communicate()
    assert driver.returncode == 1, error
    told = error.splitlines()[-1]
    assert "no space left" in told.lower()
    assert "Traceback" not in error


def test_what_failed_is_listed_and_tried_again_on_request(ray_session: None, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with EndpointProcess(*EXPERTS, "--fault", "10-15=500", "--log", str(log)) as endpoint:
        settings = with_model(endpoint.url, "team.model=m", "teaching.runs_in_flight=2")
        with run_in(tmp_path / "run", *settings) as run:
            result = distilled(run)
            assert result["failed"] > 0
            assert result["transcripts"] + result["failed"] == RUNS
            lines = (run.teachers / "failed.jsonl").read_text().splitlines()
            assert len(lines) == result["failed"]
            assert {json.loads(line)["where"] for line in lines} == {"EndpointDown"}
            assert result["requests"] == len(read_log(log)), "those of runs that failed count"
            assert distilled(run) == result, "without being asked for, nothing is tried again"
        with run_in(tmp_path / "run", *settings, "distill.retry_failed=true") as run:
            result = distilled(run)
            assert result["failed"] == 0
            assert names(run) == EVERY
            assert not (run.teachers / "failed.jsonl").exists()
            assert result["requests"] == len(read_log(log)), "and each once"


def test_a_teacher_that_calls_tools_of_its_own_is_not_paid_to_the_end(ray_session: None, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    settings = ("team.model=m", "teaching.same_flaw=3")
    why = r"^3 team runs had the same flaw, and none was useful: replies without text, such as at "
    with (
        EndpointProcess(*EXPERTS, "--fault", "*=calls", "--log", str(log)) as endpoint,
        run_in(tmp_path / "run", *with_model(endpoint.url, *settings)) as run,
    ):
        with pytest.raises(UserError, match=why) as caught:
            distilled(run)
        assert "/chat/completions: a completion without text: it calls the tool find; change " in str(caught.value)
        assert 3 * 2 <= len(read_log(log)) <= 5 * 2, "each of them was asked for twice, and no more than 3 at once"
    with (
        EndpointProcess(*EXPERTS) as again,
        run_in(tmp_path / "run", *with_model(again.url, *settings, "distill.retry_failed=true")) as run,
    ):
        assert distilled(run)["failed"] == 0
        assert names(run) == EVERY


@pytest.mark.slow
def test_a_team_that_is_down_for_good_ends_the_stage(ray_session: None, tmp_path: Path) -> None:
    with EndpointProcess(*EXPERTS, "--fault", "30-9999=500") as endpoint:
        settings = with_model(endpoint.url, "team.model=m", "teaching.runs_in_flight=2")
        with run_in(tmp_path / "run", *settings) as run:
            with pytest.raises(
                InfrastructureError, match=r"too many team runs failed in a row; the last failure: EndpointDown: .*500"
            ):
                distilled(run)
            finished = names(run)
            assert 0 < len(finished) < RUNS - 4
        with EndpointProcess(*EXPERTS) as again:
            elsewhere = with_model(again.url, "team.model=m", "distill.retry_failed=true")
            with run_in(tmp_path / "run", *elsewhere) as run:
                assert distilled(run)["failed"] == 0
                assert names(run) == EVERY


def test_a_file_is_played_once_unless_more_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f'{{"question": "{n} ?", "answer": "x", "profile": "mhqa"}}\n' for n in range(20)))
    settings = (f"tasks.path={path}", "tasks.held_out=0.25")
    with run_in(tmp_path / "run", *settings, "distill.runs=null") as run:
        assert run.team_runs == 20 - len(run.evaluation_tasks()) < 20
    with run_in(tmp_path / "run", *settings, "distill.runs=7") as run:
        assert run.team_runs == 7
    with run_in(tmp_path / "world", "distill.runs=null") as run:
        assert run.team_runs == 10_000


def test_a_stage_goes_on_where_more_is_wanted_until_its_data_is_learnt_from(tmp_path: Path) -> None:
    done = {"runs": 5, "failed": 1, "stopped": None, "kept": 4}
    with run_in(tmp_path / "run", "distill.runs=5") as run:
        assert not goes_on(run, done)
    with run_in(tmp_path / "run", "distill.runs=5", "distill.retry_failed=true") as run:
        assert goes_on(run, done)
    with run_in(tmp_path / "run", "distill.runs=5", "distill.retry_failed=true", "distill.keep=4") as run:
        assert not goes_on(run, done), "and forgets no failure"
    with run_in(tmp_path / "run", "distill.runs=6") as run:
        assert goes_on(run, done)
        (run.checkpoints / "sft").mkdir()
        assert not goes_on(run, done)


def test_too_many_failures_keep_fine_tuning_from_beginning(tmp_path: Path) -> None:
    with run_in(tmp_path / "run") as run:
        require_most(run, {"failed": 1, "transcripts": 9})
        with pytest.raises(InfrastructureError, match=r"2 of 11 team runs failed, .*--retry-failed"):
            require_most(run, {"failed": 2, "transcripts": 9})
        (run.checkpoints / "sft").mkdir()
        require_most(run, {"failed": 2, "transcripts": 9})


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ((), "caution: wiki_search will find"),
        (("tasks.profile=web",), "caution: web_search will find"),
        (("tasks.profile=web", "tools.search.url=https://search.example.com"), ""),
        (("tasks.profile=code",), ""),
    ],
)
def test_who_looks_own_tasks_up_in_a_world_of_made_up_pages_is_told(
    tmp_path: Path, overrides: tuple[str, ...], told: str
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(f'{{"question": "{n} ?", "answer": "x"}}\n' for n in range(9)))
    with run_in(tmp_path / "run", f"tasks.path={path}", "tasks.profile=mhqa", *overrides) as run:
        caution = caution_about(run.config.tools, run.world)
        assert caution.startswith(told)
        assert bool(caution) == bool(told)


class Objecting:
    """The handle of a model that objects to everything."""

    def __init__(self) -> None:
        self.asked = 0
        self.complete = self

    async def remote(self, *_: Any) -> Completion:
        self.asked += 1
        return Completion('{"rationale": "it guessed", "verdict": "disobeys"}', "stop", Usage())


def test_nobody_judges_what_the_rules_drop(tmp_path: Path) -> None:
    with run_in(tmp_path / "run", "distill.obedience.model=m") as run:
        runs = [Graded(play_one(task), True) for task in TASKS[:2]]
        filter, model = Filter(FilterConfig(min_interactions=1), Contamination.of([TASKS[0].question])), Objecting()
        judged = asyncio.run(Review(run, {"m": cast(Any, model)}, filter.flaw).judge(runs))
        assert judged == [runs[0], replace(runs[1], objection="it guessed")]
        assert model.asked == 1


def test_what_a_kill_left_of_a_line_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "failed.jsonl").write_text('{"task_id": "a", "attempt": 0, "where": "x", "why": "y"}\n{"task_id": "b"')
    for _ in range(2):
        store = DistillStore(tmp_path, tmp_path / "data", Filter(FilterConfig()), revise=lambda kept: kept)  # pyright: ignore
        store.give_up(FailedRun(Assignment(sum_task(len(store.failed))), "w", "z"))
    assert [json.loads(line)["task_id"] for line in (tmp_path / "failed.jsonl").read_text().splitlines()] == [
        "a",
        "sum-1",
        "sum-2",
    ]


def test_runs_of_several_files_are_counted_through(tmp_path: Path) -> None:
    runs = [Graded(play_one(TASKS[i], attempt=0), True) for i in (0, 1, 0)]
    found = [(one.transcript.task.id, one.transcript.attempt) for one in numbered(runs)]
    assert found == [(TASKS[0].id, 0), (TASKS[1].id, 0), (TASKS[0].id, 1)]


def reviewer(messages: Sequence[Mapping[str, Any]], seed: int | None) -> str:
    """As a judge it objects to every run that reflects; as a writer it says everything in other words."""
    system, shown = messages[0]["content"], messages[-1]["content"]
    if '"verdict"' in system:
        disobeys = "<reflection>" in shown.rpartition("<run>")[2]
        return json.dumps({"rationale": "no reason", "verdict": "disobeys" if disobeys else "obeys"})
    step = shown.rpartition("<step>")[2]
    return f"{step.split()[0] if step.split()[0].isdecimal() else ''} In other words."


@pytest.mark.slow
def test_a_model_judges_what_was_done_and_another_writes_it_anew(ray_session: None, tmp_path: Path) -> None:
    with EndpointProcess("--reply", "tests.jobs.stages.test_distill_job:reviewer") as endpoint:
        with run_in(tmp_path / "plain") as run:
            plain = distilled(run)
        judged_settings = (*with_model(endpoint.url), "distill.obedience.model=m")
        with run_in(tmp_path / "judged", *judged_settings) as run:
            judged = distilled(run)
            assert judged["dropped"]["instructions disobeyed"] > 0
            assert judged["kept"] + judged["dropped"]["instructions disobeyed"] >= plain["kept"]
            assert all(span.tag != "reflection" for row in read_rows(run.data) for span in row.chain)
        with run_in(tmp_path / "written", *with_model(endpoint.url), "distill.rewriting.model=m") as run:
            written = distilled(run)
            spans = [span for row in read_rows(run.data) for span in row.chain if span.tag == "reflection"]
            assert written["rewritten"]["rewritten"] == len(spans) > 0
            assert {span.text.strip() for span in spans} == {"In other words."}


@pytest.mark.slow
def test_data_of_another_run_and_a_released_file_are_trained_on(ray_session: None, tmp_path: Path) -> None:
    with run_in(tmp_path / "other") as other:
        kept = distilled(other)["kept"]
        own = sum(row.copies for row in read_rows(other.data))
    released = tmp_path / "MHQADataset.json"
    chain = (
        "<think>Who ?</think><wiki_search>Vexon</wiki_search><observation>of Berg</observation><answer>Berg</answer>"
    )
    released.write_text(json.dumps([{"instruction": QUESTION, "input": "", "output": chain, "system": ""}]))
    with run_in(tmp_path / "run", f"sft.data=[{other.data},{released}]") as run:
        samples = prepare(run)
        assert len(samples) == own + 1
        rows = list(read_rows(run.data))
        assert [row.source for row in rows[-1:]] == ["released"]
        assert len(rows) == kept + 1
        assert (run.start_model / "model.safetensors").exists()
