"""The job of selection: what it asks of the pool, what it writes, and that a model is asked as it should be."""

import asyncio
import functools
import io
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from actors.rollout.config import SamplingConfig
from coa.agent.grammar import parse
from coa.agent.records import EpisodeRecord
from coa.config import load as load_config
from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.shards import write_shard
from coa.errors import ToolDown, UserError
from coa.tasks.loading import load, row_of
from coa.tasks.selection import Learnt, Mode, SelectionConfig
from coa.types import Status, Task
from jobs.commands import select as command
from jobs.commands.select import check
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages import select as select_tasks
from jobs.stages.select import Work, learnt_of, select_with, settings_of
from tests.support.fakes import played
from tests.support.tiny import make_model

PROGRAM = json.dumps({"stdin": [{"input": "1", "output": "2"}]})


def task(name: str, *, profile: str = "web", family: str = "f", grader: str = "exact", answer: str = "x") -> Task:
    return Task(id=name, question=f"Who is {name} ?", answers=(answer,), profile=profile, family=family, grader=grader)


class SetPool:
    """Solves each task as often as it is told to; keeps what it was asked."""

    def __init__(self, right: Mapping[str, int], down: str | None = None) -> None:
        self.asked: list[tuple[str, str, str, int, float]] = []
        self._right, self._down = right, down

    async def evaluate(
        self, one: Task, samples: Sequence[int], how: SamplingConfig, turns: int | None = None
    ) -> tuple[EpisodeRecord, ...]:
        self.asked.append((one.id, one.profile, one.grader, len(samples), how.temperature))
        if one.id == self._down:
            raise ToolDown("the sandbox is down")
        return tuple(episode(sample, correct=sample < self._right[one.id]) for sample in samples)


def episode(sample: int, *, correct: bool) -> EpisodeRecord:
    """One that is wrong was cut off."""
    status = Status.ANSWERED if correct else Status.TRUNCATED
    return played(correct, sample=sample, well_formed=correct, status=status, answer="x" if correct else "")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def run_in(folder: Path, selection: SelectionConfig, out: io.StringIO | None = None, **settings: Any) -> RunDir:
    config = Recipe(run_dir=str(folder), selection=selection, **settings)
    folder.mkdir(exist_ok=True)
    return RunDir(config, Console(out or io.StringIO(), io.StringIO()))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# --- from rates to files ----------------------------------------------------------------------------------------------

TASKS = (
    task("never", grader="judge"),
    task("nine", family="g"),
    task("ten"),
    task("always", profile="code", grader="tests", answer=PROGRAM),
    task("taught"),
)
RIGHT = {"never": 0, "nine": 9, "ten": 10, "always": 32}


def test_what_a_model_knows_without_tools_is_dropped_and_the_rest_kept_as_it_was(tmp_path: Path, model: Path) -> None:
    pool, out, config = SetPool(RIGHT), io.StringIO(), SelectionConfig()
    run = run_in(tmp_path / "out", config, out)
    work = Work(model, "t.jsonl", TASKS, Learnt.of([task("taught")]), Mode.DIRECT, config)
    asyncio.run(select_with(pool, work, run))
    assert sorted(pool.asked) == [
        ("always", "direct", "tests", 32, 1.0),
        ("never", "direct", "exact", 32, 1.0),
        ("nine", "direct", "exact", 32, 1.0),
        ("ten", "direct", "exact", 32, 1.0),
    ]
    assert load(str(run.folder / "tasks.jsonl")) == TASKS[:2]
    assert lines(run.folder / "dropped.jsonl") == [
        {"id": "ten", "rate": 10 / 32, "reason": "solved too often"},
        {"id": "always", "rate": 1.0, "reason": "solved too often"},
        {"id": "taught", "rate": None, "reason": "in the SFT data"},
    ]
    found = json.loads((run.folder / "selection.json").read_text())
    assert found.pop("seconds") >= 0
    settings = found.pop("settings")
    assert (settings["direct"]["tries"], settings["direct"]["max_rate"], settings["limit"]) == (32, 0.3, None)
    rate = (0 + 9 + 10 + 32) / 32 / 4
    assert found == {
        "tasks": "t.jsonl",
        "model": str(model),
        "mode": "direct",
        "counts": {
            "tasks": 5,
            "kept": 2,
            "dropped": {"in the SFT data": 1, "solved too often": 2},
            "rate": pytest.approx(rate),
        },
        "families": {
            "f": {
                "tasks": 4,
                "kept": 1,
                "dropped": {"in the SFT data": 1, "solved too often": 2},
                "rate": pytest.approx(42 / 96),
            },
            "g": {"tasks": 1, "kept": 1, "dropped": {}, "rate": 9 / 32},
        },
        "tasks_by_right_attempts": {"0": 1, "9": 1, "10": 1, "32": 1},
        "statuses": {"answered": 51, "truncated": 77},
        "unanswered": pytest.approx(77 / 128),
        "resumed": 0,
    }
    assert len(pq.read_table(run.folder / "episodes.parquet")) == 4 * 32
    assert not (run.folder / "attempts.jsonl").exists()
    shown = [line.split() for line in out.getvalue().splitlines()]
    assert ["all", "5", "2", "1", "2", "0.398"] in shown
    assert ["g", "1", "1", "0", "0", "0.281"] in shown
    assert "60% of the attempts gave no answer" in out.getvalue()


def test_what_the_tuned_agent_always_solves_is_dropped_and_a_sample_of_the_rest_is_kept(
    tmp_path: Path, model: Path
) -> None:
    tasks = tuple(task(f"t{number}", grader="judge") for number in range(20))
    pool = SetPool({one.id: 8 if index < 5 else index % 8 for index, one in enumerate(tasks)})

    def kept(name: str, config: SelectionConfig) -> tuple[Task, ...]:
        run = run_in(tmp_path / name, config)
        asyncio.run(select_with(pool, Work(model, "t", tasks, Learnt(), Mode.TUNED, config), run))
        return load(str(run.folder / "tasks.jsonl"))

    assert kept("all", SelectionConfig()) == tasks[5:]
    assert set(pool.asked) == {(one.id, "web", "judge", 8, 1.0) for one in tasks}
    some = kept("some", SelectionConfig(limit=6))
    assert len(some) == 6
    assert set(some) < set(tasks[5:])
    assert kept("again", SelectionConfig(limit=6)) == some != kept("other", SelectionConfig(limit=6, seed=1))
    dropped = lines(tmp_path / "some" / "dropped.jsonl")
    assert [row["reason"] for row in dropped].count("not drawn") == 9
    assert [row["id"] for row in dropped if row["reason"] == "always solved"] == [f"t{number}" for number in range(5)]


def test_a_selection_that_keeps_nothing_says_so(tmp_path: Path, model: Path) -> None:
    config, out = SelectionConfig(), io.StringIO()
    run = run_in(tmp_path / "out", config, out)
    work = Work(model, "t", (task("a"),), Learnt(), Mode.TUNED, config)
    asyncio.run(select_with(SetPool({"a": 8}), work, run))
    assert (run.folder / "tasks.jsonl").read_text() == ""
    assert "no task is kept" in out.getvalue()
    assert "gave no answer" not in out.getvalue()


def test_an_interrupted_selection_goes_on_though_its_thresholds_changed(tmp_path: Path, model: Path) -> None:
    def work(config: SelectionConfig) -> Work:
        return Work(model, "t", TASKS[:2], Learnt(), Mode.TUNED, config)

    before, after = SelectionConfig(), SelectionConfig(tuned=replace(SelectionConfig().tuned, drop_unsolved=True))
    right = {"never": 0, "nine": 1}
    with pytest.raises(ExceptionGroup):
        asyncio.run(select_with(SetPool(right, down="nine"), work(before), run_in(tmp_path / "out", before)))
    assert not (tmp_path / "out" / "tasks.jsonl").exists()
    pool, out = SetPool(right), io.StringIO()
    asyncio.run(select_with(pool, work(after), run_in(tmp_path / "out", after, out)))
    assert [name for name, *_ in pool.asked] == ["nine"]
    assert "1 of 2 tasks were attempted already" in out.getvalue()
    assert lines(tmp_path / "out" / "dropped.jsonl") == [{"id": "never", "rate": 0.0, "reason": "never solved"}]


# --- rows and what was taught -----------------------------------------------------------------------------------------


def test_a_kept_task_is_read_back_as_it_was(tmp_path: Path) -> None:
    tasks = (
        task("p", profile="code", grader="tests", family="livecodebench_v5/sample_tests", answer=PROGRAM),
        replace(task("aime24-3", profile="math", grader="math", family="aime24"), answers=("204", "204.0")),
        replace(task("é\u2028"), question="half a pair \ud83d, a line\u2028and\nanother", family="gaia/level2"),
    )
    path = tmp_path / "tasks.jsonl"
    select_tasks.write_lines(path, map(row_of, tasks))
    assert load(str(path)) == tasks


def test_what_was_taught_is_a_runs_data_a_folder_of_it_or_a_file(tmp_path: Path) -> None:
    taught = task("a", profile="mhqa")
    row = Demonstration(task=taught, text="<plan> p</plan><answer> x</answer>", interactions=2)
    write_shard(tmp_path / "run" / "data", 0, [row], {})
    file = tmp_path / "sft.jsonl"
    select_tasks.write_lines(file, [row_of(taught)])
    for spec in (tmp_path / "run", tmp_path / "run" / "data", file):
        assert learnt_of(str(spec), "mhqa") == Learnt(frozenset({"a"}), frozenset({"who is"})), spec
    assert learnt_of(None, "mhqa") == Learnt()


# --- before it begins -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"), max_positions=4096)


def checked(tiny: Path, folder: Path, *overrides: str, mode: str = "direct", out: str = "out", **row: str) -> None:
    file = folder / "tasks.jsonl"
    file.write_text(json.dumps({"question": "Who ?", "answer": "x", "id": "a", "profile": "mhqa"} | row) + "\n")
    limits = "agent.limits.max_tokens=4096"
    config = load_config(Recipe, None, [limits, *overrides])
    check(config, model=tiny, tasks=str(file), mode=mode, rows=None, out=folder / out, overrides=overrides)


def test_a_judge_is_needed_by_the_tuned_agent_and_not_by_a_direct_attempt(tiny: Path, tmp_path: Path) -> None:
    checked(tiny, tmp_path, grader="judge")
    with pytest.raises(UserError, match=r"tools\.judge\."):
        checked(tiny, tmp_path, grader="judge", mode="tuned")
    with pytest.raises(UserError, match=r"tools\.judge\."):
        checked(tiny, tmp_path, "selection.judge=true", grader="judge")
    checked(tiny, tmp_path, "tasks.world=tiny", "rl.reward.formula=judge * form", mode="tuned")


def test_what_would_come_to_nothing_is_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tasks\.jsonl: the kept tasks would overwrite this file"):
        checked(tiny, tmp_path, out=".")
    same = f"selection.sft={tmp_path / 'tasks.jsonl'}"
    with pytest.raises(UserError, match=r"every task is in selection\.sft="):
        checked(tiny, tmp_path, same, profile="web")
    checked(tiny, tmp_path, same)
    with pytest.raises(UserError, match=r"gone\.jsonl: cannot be read"):
        checked(tiny, tmp_path, f"selection.sft={tmp_path / 'gone.jsonl'}")
    with pytest.raises(UserError, match="no model there"):
        checked(tmp_path, tmp_path)


def test_a_direct_attempt_is_told_the_rules_and_a_tuned_one_as_it_was_trained(model: Path, tmp_path: Path) -> None:
    untold = load_config(Recipe, None, ["agent.instructed=false", "rl.reward.formula=judge"])
    for mode in Mode:
        work = Work(model, "t", (task("a"),), Learnt(), mode, untold.selection)
        config = settings_of(untold, work, tmp_path / "out", ())
        assert config.agent.instructed == (mode is Mode.DIRECT)
        assert config.rl.reward.formula == "grade"
        assert config.run_dir == str(tmp_path / "out")


def test_the_job_brings_tasks_pool_and_settings_together(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run` on a pool of our own, without Ray."""
    import jobs.stages.engines
    import jobs.stages.services

    file, pool, seen = tmp_path / "t.jsonl", SetPool({"a": 32, "b": 0}), []
    select_tasks.write_lines(file, [row_of(task("a")), row_of(task("b")), row_of(task("c"))])

    def alone(
        config: Recipe, console: Console, body: Callable[[RunDir], Coroutine[Any, Any, None]], demands: Any, model: Path
    ) -> None:
        asyncio.run(body(RunDir(config, console)))

    @asynccontextmanager
    async def tools_of(run: RunDir, profiles: set[str]) -> AsyncIterator[str]:
        assert profiles == {"direct"}
        yield "tools"

    @asynccontextmanager
    async def engines(run: RunDir, of: Path, tools: str) -> AsyncIterator[SetPool]:
        seen.append((run.config.agent.instructed, of, tools))
        yield pool

    monkeypatch.setattr(command, "in_session", alone)
    monkeypatch.setattr(jobs.stages.services, "tool_client", tools_of)
    monkeypatch.setattr(jobs.stages.engines, "engine_pool", engines)
    console = Console(io.StringIO(), io.StringIO())
    go = functools.partial(command.run, load_config(Recipe, None, ["agent.instructed=false"]), console)
    (tmp_path / "out").mkdir()
    go(model=model, tasks=str(file), mode="direct", rows=2, out=tmp_path / "out")
    assert seen == [(True, model.resolve(), "tools")]
    assert [row["id"] for row in lines(tmp_path / "out" / "tasks.jsonl")] == ["b"]
    assert [row["id"] for row in lines(tmp_path / "out" / "dropped.jsonl")] == ["a"]


# --- with a model -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_random_model_solves_nothing_so_that_either_way_all_is_kept(
    ray_session: None, tiny: Path, tmp_path: Path
) -> None:
    """Engines, executors and graders as they are; the grammar is enforced: a random model has no form of its own."""
    from jobs.stages.engines import engine_pool
    from jobs.stages.services import tool_client

    recipe = load_config(
        Recipe,
        None,
        [
            f"run_dir={tmp_path}",
            "tasks.world=tiny",
            "agent.grammar=enforce",
            "agent.limits={max_turns: 3, max_turn_tokens: 600, max_tokens: 4096, max_tag_tokens: 8}",
            "selection.direct.tries=4",
            "selection.tuned.tries=2",
            "engine.kv_cache_gib=0.25",
        ],
    )
    tasks = tuple(task(f"t{number}", profile="mhqa", answer="Bartholomew Quint") for number in range(3))

    async def both() -> None:
        base = RunDir(recipe, Console(io.StringIO(), io.StringIO()))
        async with tool_client(base) as tools, engine_pool(base, tiny, tools) as pool:
            for mode in Mode:
                work = Work(tiny, "t", tasks, Learnt(), mode, recipe.selection)
                run = RunDir(settings_of(recipe, work, tmp_path / mode, ()), base.console)
                run.folder.mkdir()
                selection = await select_with(pool, work, run)
                assert selection.kept == tasks

    asyncio.run(both())
    for mode, tries in ((Mode.DIRECT, 4), (Mode.TUNED, 2)):
        assert load(str(tmp_path / mode / "tasks.jsonl")) == tasks
        found = json.loads((tmp_path / mode / "selection.json").read_text())
        assert found["counts"] == {"tasks": 3, "kept": 3, "dropped": {}, "rate": 0.0}
        assert found["tasks_by_right_attempts"] == {"0": 3}
        assert sum(found["statuses"].values()) == 3 * tries
        rows = pq.read_table(tmp_path / mode / "episodes.parquet").to_pylist()
        said = {span.tag for row in rows for span in parse(row["text"]).chain}
        assert said <= {"think", "answer"} if mode is Mode.DIRECT else "plan" in said
        assert any(row["status"] == "answered" for row in rows)
