import asyncio
import io
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from actors.learner.buffer import Committed, Finished, Started, Stepped
from coa.config import load
from coa.errors import NothingLearnt, UserError
from coa.learning.orders import Train
from coa.reporting.metrics import read_metrics
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console, Stage
from jobs.run.run_dir import RunDir
from jobs.stages.sft import feed, follow, prepare, record_of
from tests.support.checkpoints import write_checkpoints
from tests.support.tiny import random_sample


@dataclass(frozen=True)
class Report:
    samples: int = 64
    tokens: int = 3000
    loss: float = 0.5
    grad_norm: float = 1.5
    entropy: float = 0.25
    staleness_mean: float = 0.0
    updates: int = 1
    skipped: int = 0
    not_finite: str | None = None


def test_a_record_of_fine_tuning_leaves_out_what_only_sampled_tokens_have() -> None:
    event: Any = SimpleNamespace(version=5, report=Report(), began=10.0, ended=12.0, waited=0.5)
    assert record_of(event, 0.1) == {
        "loss": 0.5,
        "grad_norm": 1.5,
        "entropy": 0.25,
        "samples": 64,
        "tokens": 3000,
        "updates": 1,
        "skipped": 0,
        "tokens_s": 1500.0,
        "epoch": 0.5,
        "seconds": 2.0,
        "waited": 0.5,
    }


class Restarting:
    """Learners that take three steps, go back to the checkpoint after the first, and end with the fourth."""

    replicas = 2

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.phases: list[str] = []
        self.fed: list[asyncio.Future[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        work.close()
        self.fed.append(asyncio.get_running_loop().create_future())
        return self.fed[-1]

    async def events(self) -> AsyncIterator[Any]:
        for epoch, versions in ((1, (1, 2, 3)), (2, (2, 3, 4))):
            self.phases.append(self.stage.doing)
            parity = "samples in packed rows: 1e-06 nats"
            yield Started(
                version=versions[0] - 1,
                cursor=0,
                weights=None,
                probes=(),
                parity=parity,
                shares_prefixes=True,
                epoch=epoch,
            )
            for version in versions:
                self.phases.append(self.stage.doing)
                report: Any = Report(loss=epoch + version / 10)
                yield Stepped(version=version, report=report, began=0.0, ended=1.0, waited=0.0, weights=None, probes=())
                if version == 2:
                    yield Committed(version=2, write_s=0.5, commit_s=epoch, size=2**30)
        yield Finished(version=4)


def test_learners_that_go_back_have_each_step_once_and_the_terminal_says_what_goes_on(tmp_path: Path) -> None:
    config = load(Recipe, find_recipe("tiny"), [f"run_dir={tmp_path}", "wandb.mode=disabled"])
    out = io.StringIO()
    run = RunDir(config, Console(out, io.StringIO()))
    run.prepare()
    stage = Stage("sft", 4)

    async def body() -> Restarting:
        learning: Any = Restarting(stage)
        demonstrations: list[Any] = [None] * config.sft.batch
        await follow(run, learning, demonstrations, 4, stage)
        return learning

    learning = asyncio.run(body())
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert [(record["step"], record["loss"]) for record in records] == [(1, 1.1), (2, 2.2), (3, 2.3), (4, 2.4)]
    assert [record["epoch"] for record in records] == [1.0, 2.0, 3.0, 4.0]
    assert [record.get("checkpoint_commit_s") for record in records] == [None, None, 2.0, None]
    assert (records[2]["checkpoint_write_s"], records[2]["checkpoint_gib"]) == (0.5, 1.0)
    assert learning.phases[:3] == ["starting 2 learners, loading the model", "the first step", ""]
    assert (stage.done, stage.doing) == (4, "writing the model")
    assert out.getvalue() == "sft: samples in packed rows: 1e-06 nats\n"
    assert [feeding.cancelled() for feeding in learning.fed] == [True, False]


class Fed:
    """Learners that take what they are fed."""

    replicas = 2

    def __init__(self) -> None:
        self.orders: list[Train] = []

    async def put(self, order: Train, epoch: int) -> bool:
        self.orders.append(order)
        return True


@pytest.mark.parametrize("shared", [True, False])
def test_samples_that_begin_alike_go_to_one_rank_if_it_computes_that_once(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.session.store_object", lambda value: value)
    overrides = [f"run_dir={tmp_path}", "sft.batch=4"]
    run = RunDir(load(Recipe, find_recipe("tiny"), overrides), Console(io.StringIO(), io.StringIO()))
    texts = [np.array([begin] * (32 + end), np.int32) for begin, end in ((1, 0), (1, 1), (2, 2), (2, 3))]
    samples: list[Any] = [SimpleNamespace(token_ids=one) for one in texts]
    started = Started(version=0, cursor=0, weights=None, probes=(), parity="alike", shares_prefixes=shared, epoch=1)
    learning: Any = Fed()
    asyncio.run(feed(run, learning, samples, 1, started))
    [order] = learning.orders
    begins = [sorted(int(one.token_ids[0]) for one in share) for (share,) in order.shares]
    assert sorted(begins) == ([[1, 1], [2, 2]] if shared else [[1, 2], [1, 2]])


def test_fine_tuning_goes_on_with_the_rows_that_it_began_with_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir(load(Recipe, find_recipe("tiny"), [f"run_dir={tmp_path}"]), Console(io.StringIO(), io.StringIO()))
    dice = np.random.default_rng(0)
    samples = [random_sample(dice, 100, version=0) for _ in range(3)]
    masked = replace(samples[0], loss_mask=~samples[0].loss_mask)

    run.start_model.mkdir(parents=True)
    (run.start_model / "config.json").write_text("{}")  # the initial model is there

    def check(found: list[Any]) -> None:
        monkeypatch.setattr("jobs.stages.sft.read_samples", lambda folder: iter(found))
        assert all(one is other for one, other in zip(prepare(run), found, strict=True))

    check(samples[:2])
    check(samples)  # nothing is trained yet
    write_checkpoints(run.checkpoints / "sft", 10)
    check(samples)
    for others in (samples[:2], samples[::-1], [masked, *samples[1:]], [*samples, samples[0]]):
        with pytest.raises(UserError) as refused:
            check(others)
        assert str(refused.value) == (
            f"samples in {run.data}: these {len(others)} are not those that sft began with, or not in their order: "
            f"bring those back, or remove {run.checkpoints / 'sft'} to begin it anew"
        )
    (run.checkpoints / "sft-data.json").unlink()
    check(samples[::-1])  # a run that began without a note goes on
    with pytest.raises(UserError, match="not in their order"):
        check(samples)


class Skipping:
    """Learners that skip their updates at some steps."""

    replicas = 1

    def __init__(self, steps: int, skipped: set[int]) -> None:
        self.steps, self.skipped = steps, skipped

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        work.close()
        return asyncio.get_running_loop().create_future()

    async def events(self) -> AsyncIterator[Any]:
        yield Started(version=0, cursor=0, weights=None, probes=(), parity="alike", shares_prefixes=True, epoch=1)
        for version in range(1, self.steps + 1):
            wrong = {"updates": 0, "skipped": 1, "not_finite": "5 imitation weights are not finite"}
            report: Any = Report(**(wrong if version in self.skipped else {}))  # pyright: ignore[reportArgumentType]
            yield Stepped(version=version, report=report, began=0.0, ended=1.0, waited=0.0, weights=None, probes=())


def test_skipped_steps_are_told_and_end_the_stage_if_one_comes_after_the_other(tmp_path: Path) -> None:
    config = load(Recipe, find_recipe("tiny"), [f"run_dir={tmp_path}", "wandb.mode=disabled"])
    out = io.StringIO()
    run = RunDir(config, Console(out, io.StringIO()))
    run.prepare()
    demonstrations: list[Any] = [None] * config.sft.batch

    def skipped(steps: int, which: set[int]) -> int:
        learning: Any = Skipping(steps, which)
        return asyncio.run(follow(run, learning, demonstrations, steps, Stage("sft", steps)))

    said = "nothing was learnt from the batch: 5 imitation weights are not finite"
    assert skipped(9, {2, 5, 6, 7, 8}) == 5
    records = read_metrics(tmp_path / "metrics.jsonl")
    assert {record["step"]: record["faults"] for record in records if "faults" in record} == dict.fromkeys(
        (2, 5, 6, 7, 8), said
    )
    assert [record["skipped"] for record in records] == [0, 1, 0, 0, 1, 1, 1, 1, 0]
    steps_told = [f"sft: step {step}: {said}" for step in (2, 5, 6, 7, 8)]
    assert out.getvalue().splitlines() == ["sft: alike", *steps_told]
    with pytest.raises(NothingLearnt, match=r"^5 steps in a row taught nothing; the last one: 5 imitation weights are"):
        skipped(9, {1, *range(3, 9)})
    assert [record["step"] for record in read_metrics(tmp_path / "metrics.jsonl")] == list(range(1, 8))
