"""The asynchronous loop against a plain synchronous one, and its staleness bound, on real engines and learners."""

import asyncio
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.teacher import Outcome
from cluster.pool import EnginePool
from coa.config import load
from coa.credit import informative
from coa.errors import UserError
from coa.metrics import read_metrics
from coa.rollout import GroupRecord
from coa.staleness import Ticket, WindowConfig
from coa.teachers.store import read_transcripts
from coa.types import Sample
from jobs import rl_teachers
from jobs.cli import find_recipe
from jobs.console import Console
from jobs.engines import engine_pool
from jobs.recipe import Recipe
from jobs.rl import rl
from jobs.rl_teachers import FIRST_ATTEMPT, Rescue
from jobs.run import Run
from jobs.services import tool_executors
from tests.tiny import AGENT, make_model

STEPS = 6
GROUPS = 4
EXECUTORS: list[Any] = []


def make_run(folder: Path, *overrides: str, max_staleness: int) -> Run:
    """Rewards differ by length alone: an untrained model's groups say something too."""
    settings = [f"run_dir={folder}", f"rl.steps={STEPS}", "rl.group=3", *overrides]
    config = load(Recipe, find_recipe("tiny"), settings)
    rl = replace(
        config.rl,
        window=WindowConfig(max_staleness=max_staleness, groups_per_batch=GROUPS, max_refills=1),
        reward=replace(config.rl.reward, overlong_buffer=1.0),
        checkpoint_every=100,
    )
    run = Run(replace(config, agent=AGENT, rl=rl), Console(io.StringIO(), io.StringIO()))
    run.prepare()
    for model in (run.start_model, run.sft_model):
        make_model(model)
    return run


class Recording:
    """A pool that keeps what each group was to learn from."""

    def __init__(self, pool: EnginePool) -> None:
        self.pool = pool
        self.samples: dict[int, tuple[Sample, ...]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    async def play(self, task: Any, ticket: Ticket, *rest: Any) -> Any:
        record, samples = await self.pool.play(task, ticket, *rest)
        self.samples[ticket.group] = await samples
        return record, samples


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def stage(
    ray_session: None, loop: asyncio.AbstractEventLoop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """An engine pool that the tests of this file share, and executors in EXECUTORS."""
    run = make_run(tmp_path_factory.mktemp("stage"), max_staleness=0)
    executors = tool_executors(run)
    EXECUTORS.extend(loop.run_until_complete(executors.__aenter__()))
    pool = engine_pool(run, run.sft_model, EXECUTORS)
    yield loop.run_until_complete(pool.__aenter__())
    loop.run_until_complete(pool.__aexit__(None, None, None))
    loop.run_until_complete(executors.__aexit__(None, None, None))


async def synchronous(run: Run, pool: Recording, learner: Any) -> list[float]:
    """The plain loop: play a batch to its end, learn from it, load the weights, and again. Returns the losses."""
    config, losses, group = run.config.rl, [], 0
    await pool.sync(0, ray.put(learner.weights()), ())
    for version in range(config.steps):
        batch: list[Sample] = []
        missing, refills = config.window.groups_per_batch, 0
        while missing:
            task = run.training_task("rl", group)
            record, _ = await pool.play(task, Ticket(group, version), config.group, config.sampling)
            assert isinstance(record, GroupRecord)
            missing -= 1
            if informative(record.rewards):
                batch.extend(pool.samples[group])
            elif refills < config.window.max_refills * config.window.groups_per_batch:
                missing, refills = missing + 1, refills + 1
            group += 1
        losses.append(learner.step(batch, version).loss)
        await pool.sync(version + 1, ray.put(learner.weights()), ())
    return losses


@pytest.fixture
def learner(one_rank: None, tmp_path: Path) -> Any:
    from actors.learner import Learner

    run = make_run(tmp_path / "reference", max_staleness=0)
    return Learner(run.sft_model, run.config.model, run.config.rl.learner, steps=STEPS)


def losses_of(run: Run) -> list[float]:
    return [record["loss"] for record in read_metrics(run.folder / "metrics.jsonl")]


def test_without_staleness_the_loop_is_the_synchronous_one(
    stage: EnginePool, loop: asyncio.AbstractEventLoop, learner: Any, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", max_staleness=0)
    plain = Recording(stage)
    expected = loop.run_until_complete(synchronous(run, plain, learner))
    ours = Recording(stage)
    result = loop.run_until_complete(rl(run, ours, EXECUTORS))
    assert ours.samples.keys() == plain.samples.keys()
    for group, samples in plain.samples.items():
        for mine, theirs in zip(ours.samples[group], samples, strict=True):
            assert np.array_equal(mine.token_ids, theirs.token_ids)
    assert np.abs(np.array(losses_of(run)) - expected).max() < 1e-5
    assert len(expected) == STEPS
    assert result["staleness_max"] == 0


def test_with_staleness_the_bound_holds_and_work_overlaps(
    stage: EnginePool, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", max_staleness=2)
    result = loop.run_until_complete(rl(run, stage, EXECUTORS))
    assert result["steps"] == STEPS
    assert 0 < result["staleness_max"] <= 2
    assert result["staleness_mean"] > 0
    assert result["logprob_max_diff"] < 1e-4
    assert result["syncs"] >= STEPS / 2
    assert json.loads((run.checkpoints / "rl.json").read_text()) == result
    assert (run.model / "model.safetensors").exists()


@pytest.mark.slow
def test_an_engine_that_dies_is_replaced_and_makes_no_sample(
    stage: EnginePool, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    """It comes back with the weights of its start, and serves again once it has the newest."""
    run = make_run(tmp_path / "run", max_staleness=1)
    result = loop.run_until_complete(rl(run, Fragile(stage), EXECUTORS))
    assert result["steps"] == STEPS
    assert result["engine_restarts"] == 1
    assert any(reason.startswith("Actor") for reason in result["dropped"])
    assert result["staleness_max"] <= 1
    assert result["logprob_max_diff"] < 1e-4


@pytest.mark.slow
def test_a_scoring_teacher_weighs_every_group_and_pulls_the_policy_to_itself(
    stage: EnginePool, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    teacher = make_model(tmp_path / "teacher", seed=1, hidden_size=96)
    run = make_run(
        tmp_path / "run",
        f"rl.on_policy.teacher={teacher}",
        "rl.learner.optimizer.lr=3e-3",
        "rl.learner.optimizer.warmup_steps=0",
        max_staleness=0,
    )
    result = loop.run_until_complete(rl(run, stage, EXECUTORS))
    assert result["dropped"] == {}, "a group of equal rewards says something too"
    divergences = [record["reverse_kl"] for record in read_metrics(run.folder / "metrics.jsonl")]
    assert divergences[-1] < 0.7 * divergences[0]


def test_a_teacher_with_another_tokenizer_is_refused(
    stage: EnginePool, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    from coa.tokenizer import save_tokenizer, train_tokenizer

    teacher = make_model(tmp_path / "teacher")
    save_tokenizer(train_tokenizer(("other words",) * 20, (), vocabulary=1000), teacher)
    run = make_run(tmp_path / "run", f"rl.on_policy.teacher={teacher}", max_staleness=0)
    with pytest.raises(UserError, match="has another tokenizer than the policy"):
        loop.run_until_complete(rl(run, stage, EXECUTORS))


class Shown(Rescue):
    """Says when there is something to imitate."""

    ready = asyncio.Event()

    async def _end(self, outcome: Outcome, imitated: int = 0) -> None:
        await super()._end(outcome, imitated)
        if self._ready:
            self.ready.set()


class AfterTheTeam(Recording):
    """No group of a third batch is played before there is."""

    async def play(self, task: Any, ticket: Ticket, *rest: Any) -> Any:
        if ticket.group >= 2 * GROUPS:
            await Shown.ready.wait()
        return await self.pool.play(task, ticket, *rest)


def test_teachers_score_what_is_said_and_show_what_fails_altogether(
    stage: EnginePool, loop: asyncio.AbstractEventLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rl_teachers, "Rescue", Shown)
    tasks = tmp_path / "sums.jsonl"
    rows = ({"question": f"What is {a} * 3 - 4 ?", "answer": str(a * 3 - 4), "profile": "code"} for a in range(9, 19))
    tasks.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    teacher = make_model(tmp_path / "teacher", seed=1, hidden_size=96)
    steps = 3
    settings = (f"rl.steps={steps}", f"tasks.path={tasks}", "rl.rescue.attempts=2", "rl.rescue.share=2")
    run = make_run(tmp_path / "run", *settings, f"rl.on_policy.teacher={teacher}", max_staleness=1)
    result = loop.run_until_complete(rl(run, AfterTheTeam(stage), EXECUTORS))
    assert result["dropped"] == {}, "a group of equal rewards says something too"
    records, told = read_metrics(run.folder / "metrics.jsonl"), result["rescue"]
    assert all(record["reverse_kl"] > 0 for record in records if record["groups"])
    imitated = [record["imitated"] for record in records]
    assert 0 < max(imitated) <= 2 * GROUPS * 3
    assert told["imitated"] == sum(imitated)
    kept = [one for one in read_transcripts(run.teachers / "rescue") if one.correct]
    assert len(kept) >= told["imitated"]
    assert {one.transcript.task.family for one in kept} == {"sums"}
    assert min(one.transcript.attempt for one in kept) >= FIRST_ATTEMPT


class Fragile(Recording):
    """The engine's process is killed while it plays its sixth group."""

    async def play(self, task: Any, ticket: Ticket, *rest: Any) -> Any:
        playing = asyncio.ensure_future(self.pool.play(task, ticket, *rest))
        if ticket.group == 5:
            ray.kill(self.pool._replicas[0].handle, no_restart=False)
        return await playing
