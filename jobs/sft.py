"""Supervised fine-tuning: the policy learns to say what the team's agents said, in one stream.

data set (distilled, or brought along) -> samples to imitate -> batches -> learners -> checkpoints/sft-model

The learners are DeepSpeed's, under Ray Train.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cluster.resources import Demand, learner_demands
from coa.data.brought import brought
from coa.data.tokens import read_samples
from coa.errors import UserError
from coa.types import Sample
from jobs.bring import bring_data
from jobs.console import Console
from jobs.recipe import Recipe
from jobs.run import Run, check_run, in_session
from jobs.start import finish_model, prepare_start

STAGE = "sft"


def check(config: Recipe) -> None:
    check_run(config)
    if not config.sft.data and not (Path(config.run_dir) / "checkpoints" / "distill.json").exists():
        raise UserError(f"{config.run_dir}: nothing distilled there yet: `coa distill` comes first")


def run(config: Recipe, console: Console) -> None:
    in_session(config, console, _body, demands=[sft_demands(config)])


def sft_demands(config: Recipe) -> list[Demand]:
    return learner_demands(config.placement, config.sft.learner.ranks)


async def _body(run: Run) -> None:
    run.prepare()
    await sft(run)


async def sft(run: Run) -> dict[str, Any]:
    """The stage; returns its result, at once if it is finished already."""
    if done := run.result(STAGE):
        return done
    from actors.buffer import Finished, Started, Stepped
    from jobs.learning import Learning

    config = run.config.sft
    began = time.monotonic()
    with run.console.stage("sft", config.steps) as stage:
        samples = await asyncio.to_thread(prepare, run)
        steps = config.steps_of(len(samples))
        stage.update(0, total=steps)
        learning = Learning(
            STAGE,
            checkpoints=run.checkpoints,
            placement=run.config.placement,
            model_dir=run.start_model,
            model=run.config.model,
            learner=config.learner,
            steps=steps,
            publish=False,
            checkpoint_every=config.checkpoint_every,
            output=run.sft_model,
        )
        async with learning:
            feeding, metrics = None, None
            async for event in learning.events():
                match event:
                    case Started():
                        if feeding is not None:
                            feeding.cancel()
                        if metrics is not None:
                            metrics.close()
                        feeding = learning.beside(feed(run, learning, samples, steps, event))
                        metrics = run.metrics(STAGE, event.version + 1)
                    case Stepped(report=report):
                        assert metrics is not None
                        rate = report.tokens / (event.ended - event.began)
                        metrics.write(
                            STAGE,
                            event.version,
                            loss=report.loss,
                            grad_norm=report.grad_norm,
                            samples=report.samples,
                            tokens=report.tokens,
                            seconds=event.ended - event.began,
                            waited=event.waited,
                        )
                        stage.update(event.version, loss=report.loss, trained_tok_s=round(rate))
                    case Finished():
                        pass
            assert metrics is not None
            metrics.close()
    finish_model(run, run.sft_model)
    return run.finish(
        STAGE,
        {
            "steps": steps,
            "seconds": round(time.monotonic() - began, 1),
            "samples": steps * config.batch,
            "demonstrations": len(samples),
            **({"brought": asdict(brought(run.data))} if run.config.sft.data else {}),
        },
    )


def prepare(run: Run) -> list[Sample]:
    """The samples, once data set and start model are there."""
    if run.config.sft.data:
        bring_data(run)
    prepare_start(run)
    return list(read_samples(run.data))


async def feed(run: Run, learning: Any, samples: list[Sample], steps: int, started: Any) -> None:
    """Puts the batches from the version on at which the learners have started, dealt to the ranks."""
    import ray

    from actors.buffer import Plan

    config = run.config.sft
    batches = batch_indices(len(samples), config.batch, steps, run.config.seed)
    for at, batch in enumerate(batches):
        if at < started.version:
            continue
        shares = tuple(
            (ray.put(tuple(samples[i] for i in batch[rank :: learning.ranks])),) for rank in range(learning.ranks)
        )
        if not await learning.put(Plan(version=at, shares=shares, cursor=at), started.epoch):
            return


def batch_indices(samples: int, batch: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Pass after pass over all samples, each in an order of its own; batches run over the end of a pass."""
    order: list[int] = []
    passes = 0
    for _ in range(steps):
        while len(order) < batch:
            order.extend(np.random.default_rng([seed, passes]).permutation(samples).tolist())
            passes += 1
        yield order[:batch]
        del order[:batch]
