"""Supervised fine-tuning: the policy learns to say what the team's agents said, in one stream.

demonstrations -> samples to imitate -> batches -> learners (DeepSpeed under Ray Train) -> checkpoints/sft-model
"""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from coa.codec import Codec
from coa.errors import UserError
from coa.grammar import parse
from coa.imitation import to_imitate
from coa.profiles import profile as find_profile
from coa.types import Sample
from jobs.console import Console
from jobs.distill import read_demonstrations
from jobs.recipe import Recipe
from jobs.run import Run, check_run, in_session

STAGE = "sft"


def check(config: Recipe) -> None:
    check_run(config)
    if not (Path(config.run_dir) / "checkpoints" / "distill.json").exists():
        raise UserError(f"{config.run_dir}: nothing distilled there yet: `coa distill` comes first")


def run(config: Recipe, console: Console) -> None:
    from cluster.resources import learner_demands

    in_session(config, console, _body, demands=[learner_demands(config.placement, config.sft.learner.ranks)])


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
        prepare_start(run)
        samples = demonstrations(run)
        learning = Learning(
            STAGE,
            checkpoints=run.checkpoints,
            placement=run.config.placement,
            model_dir=run.start_model,
            model=run.config.model,
            learner=config.learner,
            steps=config.steps,
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
                        feeding = learning.beside(feed(run, learning, samples, event.version, event.epoch))
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
    copy_tokenizer(run.start_model, run.sft_model)
    return run.finish(
        STAGE,
        {
            "steps": config.steps,
            "seconds": round(time.monotonic() - began, 1),
            "samples": config.steps * config.batch,
            "demonstrations": len(samples),
        },
    )


async def feed(run: Run, learning: Any, samples: list[Sample], version: int, epoch: int) -> None:
    """Puts the batches from `version` on, dealt to the ranks."""
    import ray

    from actors.buffer import Plan

    config = run.config.sft
    batches = batch_indices(len(samples), config.batch, config.steps, run.config.seed)
    for at, batch in enumerate(batches):
        if at < version:
            continue
        shares = tuple(
            (ray.put(tuple(samples[i] for i in batch[rank :: learning.ranks])),) for rank in range(learning.ranks)
        )
        if not await learning.put(Plan(version=at, shares=shares, cursor=at), epoch):
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


def demonstrations(run: Run) -> list[Sample]:
    """Every kept chain as a sample to imitate, as many times as its copies say."""
    codec = Codec.load(run.start_model)
    instructed, limit = run.config.agent.instructed, run.config.agent.limits.max_tokens
    samples: list[Sample] = []
    for task, text, copies in read_demonstrations(run.trajectories):
        chain = parse(text).chain
        trajectory = codec.demonstration(task, chain, find_profile(task.profile), instructed=instructed)
        # A cut chain would teach to stop in the middle.
        if len(trajectory.token_ids) <= limit:
            samples.extend([to_imitate(trajectory)] * copies)
    if not samples:
        raise UserError(f"no demonstration fits in agent.limits.max_tokens={limit}")
    return samples


def prepare_start(run: Run) -> None:
    """The policy before its first step: a pretrained model's folder, or a new model with a tokenizer of its own."""
    if (run.start_model / "config.json").exists():
        return
    config = run.config.model
    part = run.start_model.with_name("start.part")
    shutil.rmtree(part, ignore_errors=True)
    if config.path is not None:
        from transformers import AutoTokenizer

        from actors.policy import load_model

        load_model(config.path, config).save_pretrained(part)
        AutoTokenizer.from_pretrained(config.path).save_pretrained(part)
    else:
        _new_start(run, part)
    part.replace(run.start_model)


def _new_start(run: Run, folder: Path) -> None:
    from actors.policy import new_model
    from coa.tokenizer import save_tokenizer, train_tokenizer

    config = run.config.model
    texts = (f"{task.question} {text}" for task, text, _ in read_demonstrations(run.trajectories))
    tokenizer = train_tokenizer(texts, run.world.lexicon(), vocabulary=config.vocabulary_limit)
    save_tokenizer(tokenizer, folder)
    model = new_model(config, tokenizer, seed=run.config.seed)
    model.save_pretrained(folder)


TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json")


def copy_tokenizer(source: Path, target: Path) -> None:
    for name in TOKENIZER_FILES:
        if (source / name).exists():
            shutil.copy(source / name, target / name)
