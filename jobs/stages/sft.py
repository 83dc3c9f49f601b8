"""Supervised fine-tuning: the policy learns to write what the team's agents wrote, as one token sequence.

data set (distilled, or external) -> samples to imitate -> batches -> learners -> checkpoints/sft-model

The learners are DeepSpeed's, under Ray Train.
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict

import numpy as np

from actors.learner.buffer import Committed, Started, Stepped
from actors.learner.config import Objective
from cluster.learner_group import LearnerGroup, Learners
from coa.distill.dataset.external import external_counts
from coa.distill.dataset.tokens import digest_of, read_samples
from coa.json_object import Json
from coa.learning.algorithms import IMITATION
from coa.learning.dealing import deal_samples
from coa.learning.faults import of_updates
from coa.learning.orders import Train
from coa.learning.skipping import Skipping
from coa.reporting.metrics import MetricsLog
from coa.types import Sample
from jobs.run.agent_file import write_agent, write_world
from jobs.run.console import Stage
from jobs.run.run_dir import RunDir
from jobs.stages.external_data import add_external_data
from jobs.stages.start import check_unchanged, checkpoint_metrics, finish_model, keeping_of, prepare_start

STAGE = "sft"
REPORTED = ("loss", "grad_norm", "lr", "entropy", "samples", "tokens", "shared_fraction", "updates", "skipped")
"""The fields of a learner's report that are meaningful without sampled tokens."""
SHOWN = {"loss": "loss", "epoch": "epoch", "tokens_s": "tok/s"}
"""The metrics that the terminal shows, most important first, with their labels."""


async def sft(run: RunDir) -> Json:
    """Runs the stage and returns its result, at once if it is finished already."""
    if done := run.result(STAGE):
        return done
    if run.config.sft.skipped:
        return await begin_untuned(run)
    config = run.config.sft
    began = time.monotonic()
    with run.console.stage(STAGE, config.steps) as stage:
        stage.phase("making the tokenizer, the token ids and the initial model")
        samples = await asyncio.to_thread(prepare, run)
        steps = config.steps_of(len(samples))
        stage.update(0, total=steps)
        learning = LearnerGroup(
            STAGE,
            keeping=keeping_of(run, STAGE, config.checkpoint_every),
            placement=run.config.placement,
            model_dir=run.start_model,
            model=run.config.model,
            learner=config.learner,
            objective=Objective(algorithm=IMITATION),
            steps=steps,
            publish=False,
            output=run.sft_model,
            copy=run.copy,
            say=run.console.say,
        )
        async with learning:
            skipped = await follow(run, learning, samples, steps, stage)
    finish_model(run, run.sft_model)
    return run.finish(
        STAGE,
        {
            "steps": steps,
            "seconds": round(time.monotonic() - began, 1),
            "samples": steps * config.batch,
            "skipped": skipped,
            "demonstrations": len(samples),
            **({"external_data": asdict(external_counts(run.data))} if run.config.sft.data else {}),
        },
    )


async def begin_untuned(run: RunDir) -> Json:
    """The stage's result if the recipe's model is not fine-tuned: its start model becomes what reinforcement trains."""
    with run.console.stage(STAGE, 0) as stage:
        stage.phase("left out (sft.steps=0): preparing the initial model")
        await asyncio.to_thread(prepare_start, run)
    write_agent(run.start_model, run.config.agent)
    write_world(run.start_model, run.config, run.world.profiles())
    return run.finish(STAGE, {"steps": 0, "seconds": 0.0, "samples": 0, "demonstrations": 0})


async def follow(run: RunDir, learning: LearnerGroup, samples: list[Sample], steps: int, stage: Stage) -> int:
    """Feeds the learners and records their steps, from each start of theirs to the last step. Returns the number of
    updates that they skipped; raises NothingLearnt if they skip one after the other."""
    stage.phase(f"starting {run.config.sft.learner.ranks} learners, loading the model")
    feeding: asyncio.Task[None] | None = None
    skipping = Skipping()
    with ExitStack() as opened:
        metrics: MetricsLog | None = None
        committed: dict[str, float] = {}
        async for event in learning.events():
            if isinstance(event, Started):
                if feeding is not None:
                    feeding.cancel()
                else:
                    run.console.say(f"{STAGE}: {event.parity}")
                opened.close()
                feeding = learning.spawn(feed(run, learning, samples, steps, event))
                metrics = opened.enter_context(run.metrics(STAGE, event.version + 1))
                stage.update(event.version)
                stage.phase("the first step")
            elif isinstance(event, Stepped):
                assert metrics is not None
                record = record_of(event, run.config.sft.batch / len(samples)) | committed
                committed = {}
                metrics.write(STAGE, event.version, **record)
                stage.update(event.version, **{SHOWN[name]: record[name] for name in SHOWN if name in record})
                if event.version == steps:
                    stage.phase("writing the model")
                for sentence in of_updates(event.report):
                    run.console.say(f"{STAGE}: step {event.version}: {sentence}")
                skipping.step(event.report)
            elif isinstance(event, Committed):
                committed = checkpoint_metrics(event)
    return skipping.total


def record_of(event: Stepped, epochs_a_step: float) -> Json:
    """One record of metrics; docs/run_directory.md says what each is."""
    report, seconds = asdict(event.report), event.ended - event.began
    return {
        **{name: report[name] for name in REPORTED if name in report},
        **({"faults": "; ".join(faults)} if (faults := of_updates(event.report)) else {}),
        "tokens_s": event.report.tokens / max(seconds, 1e-9),
        "epoch": event.version * epochs_a_step,
        "seconds": seconds,
        "waited": event.waited,
    }


def prepare(run: RunDir) -> list[Sample]:
    """Prepares the data set and the initial model; returns the samples."""
    if run.config.sft.data:
        add_external_data(run)
    prepare_start(run)
    samples = list(read_samples(run.data))
    check_unchanged(run, STAGE, f"samples in {run.data}", len(samples), digest_of(samples))
    return samples


async def feed(run: RunDir, learning: Learners, samples: list[Sample], steps: int, started: Started) -> None:
    """Deals batches to the ranks, beginning with the version at which the learners have started."""
    from cluster.session import store_object

    config, share = run.config.sft, started.shares_prefixes
    batches = batch_indices(len(samples), config.batch, steps, run.config.seed)
    for at, batch in enumerate(batches):
        if at < started.version:
            continue
        dealt = deal_samples([samples[i].token_ids for i in batch], learning.replicas, share=share)
        shares = tuple((store_object(tuple(samples[batch[i]] for i in share)),) for share in dealt)
        if not await learning.put(Train(version=at, shares=shares, cursor=at), started.epoch):
            return


def batch_indices(samples: int, batch: int, steps: int, seed: int) -> Iterator[list[int]]:
    """Sample indices of each batch: repeated passes over all samples, each shuffled anew; a batch may span two."""
    order: list[int] = []
    passes = 0
    for _ in range(steps):
        while len(order) < batch:
            order.extend(np.random.default_rng([seed, passes]).permutation(samples).tolist())
            passes += 1
        yield order[:batch]
        del order[:batch]
