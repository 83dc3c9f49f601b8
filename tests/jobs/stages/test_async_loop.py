"""The asynchronous loop on real engines and learners: its staleness bound, and what fails or teaches beside it."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.messages import EpisodeOrder
from actors.teachers.team import Outcome
from actors.tools.remote import ToolClient
from cluster.pool import EnginePool
from coa.errors import UserError
from coa.reporting.metrics import read_metrics
from coa.teams.store import read_transcripts
from coa.types import Scored
from jobs.run.run_dir import RunDir
from jobs.stages.engines import engine_pool
from jobs.stages.rl import rl
from jobs.stages.services import tool_client
from jobs.teachers import fallback
from jobs.teachers.fallback import FIRST_ATTEMPT, TeacherFallback
from tests.support.loop_runs import GROUPS, Recording, make_run
from tests.support.tiny import make_model

STEPS = 3


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def run_of(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return make_run(tmp_path_factory.mktemp("stage"), max_staleness=0)


@pytest.fixture(scope="module")
def tools(run_of: RunDir, loop: asyncio.AbstractEventLoop) -> Iterator[ToolClient]:
    client = tool_client(run_of)
    yield loop.run_until_complete(client.__aenter__())
    loop.run_until_complete(client.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def stage(run_of: RunDir, tools: ToolClient, loop: asyncio.AbstractEventLoop) -> Iterator[EnginePool]:
    """An engine pool that the tests of this file share."""
    pool = engine_pool(run_of, run_of.sft_model, tools)
    yield loop.run_until_complete(pool.__aenter__())
    loop.run_until_complete(pool.__aexit__(None, None, None))


@pytest.mark.slow
def test_with_staleness_the_bound_holds_and_work_overlaps(
    stage: EnginePool, tools: ToolClient, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", max_staleness=2)
    result = loop.run_until_complete(rl(run, stage, tools))
    assert result["steps"] == STEPS
    assert 0 < result["staleness_max"] <= 2
    assert result["staleness_mean"] > 0
    assert result["logprob_max_diff"] < 1e-4
    assert result["syncs"] >= STEPS / 2
    assert json.loads((run.checkpoints / "rl.json").read_text()) == json.loads(json.dumps(result))
    assert (run.model / "model.safetensors").exists()


@pytest.mark.slow
def test_an_engine_that_dies_is_replaced_and_its_episodes_go_on(
    stage: EnginePool, tools: ToolClient, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    """Another takes its place, serves once it has the newest weights, and goes on with its episodes."""
    run = make_run(tmp_path / "run", max_staleness=1)
    fragile: Any = Fragile(stage)
    result = loop.run_until_complete(rl(run, fragile, tools))
    assert result["steps"] == STEPS
    assert result["engine_restarts"] == stage.restarts == 1
    assert stage.moves > 0
    assert result["dropped"].keys() <= {"no variance"}, "its episodes went on in the new one"
    assert result["staleness_max"] <= 1
    assert result["logprob_max_diff"] < 1e-4


@pytest.mark.slow
def test_a_scoring_teacher_weighs_every_group_and_pulls_the_policy_to_itself(
    stage: EnginePool, tools: ToolClient, loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    teacher = make_model(tmp_path / "teacher", seed=1, hidden_size=96)
    run = make_run(
        tmp_path / "run",
        f"rl.on_policy.teacher={teacher}",
        "rl.learner.optimizer.lr=3e-3",
        "rl.learner.optimizer.warmup_steps=0",
        max_staleness=0,
    )
    result = loop.run_until_complete(rl(run, stage, tools))
    assert result["dropped"] == {}, "a group of equal rewards says something too"
    divergences = [record["reverse_kl"] for record in read_metrics(run.folder / "metrics.jsonl")]
    assert divergences[-1] < 0.7 * divergences[0]


def test_a_teacher_with_another_tokenizer_is_refused_before_anything_is_played(
    ray_session: None, tmp_path: Path
) -> None:
    from coa.agent.tokenizer import save_tokenizer, train_tokenizer

    teacher = make_model(tmp_path / "teacher")
    save_tokenizer(train_tokenizer(("other words",) * 20, (), vocabulary=1000), teacher)
    run = make_run(tmp_path / "run", f"rl.on_policy.teacher={teacher}", max_staleness=0)
    nobody: Any = SimpleNamespace(stats=lambda: asyncio.sleep(0, {}))
    with pytest.raises(UserError, match="has another tokenizer than the policy"):
        asyncio.run(rl(run, nobody, nobody))


class Shown(TeacherFallback):
    """Says when there is something to imitate."""

    ready = asyncio.Event()

    async def _end(self, outcome: Outcome, imitated: int = 0) -> None:
        await super()._end(outcome, imitated)
        if self._ready:
            self.ready.set()


class AfterTheTeam(Recording):
    """No group of a third batch is played before there is."""

    async def play(self, order: EpisodeOrder) -> Scored:
        if order.id.group >= 2 * GROUPS:
            await Shown.ready.wait()
        return await super().play(order)


@pytest.mark.slow
def test_teachers_score_what_is_said_and_show_what_fails_altogether(
    stage: EnginePool,
    tools: ToolClient,
    loop: asyncio.AbstractEventLoop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fallback, "TeacherFallback", Shown)
    tasks = tmp_path / "sums.jsonl"
    rows = ({"question": f"What is {a} * 3 - 4 ?", "answer": str(a * 3 - 4), "profile": "code"} for a in range(9, 19))
    tasks.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    teacher = make_model(tmp_path / "teacher", seed=1, hidden_size=96)
    settings = (
        f"tasks.path={tasks}",
        "rl.teacher_fallback.attempts=2",
        "rl.teacher_fallback.share=2",
    )
    run = make_run(tmp_path / "run", *settings, f"rl.on_policy.teacher={teacher}", max_staleness=1)
    pool: Any = AfterTheTeam(stage)
    result = loop.run_until_complete(rl(run, pool, tools))
    assert result["dropped"] == {}, "a group of equal rewards says something too"
    assert result["staleness_max"] == 1, "work overlaps"
    assert result["logprob_max_diff"] < 1e-4
    assert (run.model / "model.safetensors").exists()
    records, told = read_metrics(run.folder / "metrics.jsonl"), result["teacher_fallback"]
    assert all(record["reverse_kl"] > 0 for record in records if record["groups"])
    imitated = [record["imitated"] for record in records]
    assert 0 < max(imitated) <= 2 * GROUPS * 3
    assert told["imitated"] == sum(imitated)
    kept = [one for one in read_transcripts(run.teachers / "fallback") if one.correct]
    assert len(kept) >= told["imitated"]
    assert {one.transcript.task.family for one in kept} == {"sums"}
    assert min(one.transcript.attempt for one in kept) >= FIRST_ATTEMPT


class Fragile(Recording):
    """The engine's process is killed while it plays its sixth group."""

    async def play(self, order: EpisodeOrder) -> Scored:
        playing = asyncio.ensure_future(super().play(order))
        if order.id.group == 5 and order.id.sample == 0:
            await asyncio.sleep(0.2)
            [replica] = self.pool._slots.replicas().values()
            os.kill(await replica.link.engine.ready(), signal.SIGKILL)
        return await playing
