"""Reinforcement in one process, of the parts that a run's actors are made of: one engine, one learner rank, no cluster.

    python -m docs.examples.loop runs/demo/checkpoints/sft-model       a minute on two cores: reward 0.5 -> 0.9

    tasks ──► episodes ──► groups ──► batch ──► step ──► weights ──► engine
                 ▲                                                     │
                 └─ the next batch is played while the learner works: its tokens are one version old at most

What a run has besides: many engines and ranks that may come, go and fail, a window that admits groups one by one, and
an account of every attempt (`jobs/stages/reinforcement/loop.py`).
"""

import argparse
import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch.distributed as dist

from actors.learner.learner import Learner
from actors.messages import Ended, EpisodeOrder, Failed, Probe
from actors.rollout.engine import RolloutEngine
from actors.tools.executor import ToolExecutor
from actors.tools.site import Site
from actors.weights.on_disk import published_file
from actors.weights.ranks import write_whole
from actors.weights.transport import Published
from coa.config import load
from coa.learning.samples import all_trained, to_samples
from coa.types import Sample, Scored, Tokens
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of
from jobs.stages.reinforcement.groups import orders_of
from jobs.stages.services import make_tools

STEPS, GROUPS = 20, 32


async def play(engine: RolloutEngine, orders: Sequence[EpisodeOrder], after: int) -> tuple[list[Scored], int]:
    """Plays episodes to their ends; returns them graded, in the order of `orders`, and the number of events so far."""
    under_way = {order.id for order in orders}
    await engine.start(orders)
    while under_way:
        batch = await engine.events(after)
        after = batch.first + len(batch.events)
        for event in batch.events:
            if isinstance(event, Failed):
                raise RuntimeError(f"{event.id}: {event.where}: {event.why}")
            if isinstance(event, Ended):
                under_way.discard(event.id)
    ids = [order.id for order in orders]
    scored = await engine.take(ids)
    await engine.acknowledge(ids)
    return [one for one in scored if isinstance(one, Scored)], after


def publish(learner: Learner, folder: Path, version: int) -> Published:
    """The weights in a file, with digests that the engine checks."""
    path = folder / f"{version}.safetensors"
    write_whole(path, learner.parts())
    (folder / f"{version - 2}.safetensors").unlink(missing_ok=True)
    return published_file(version, path)


def step(learner: Learner, samples: Sequence[Sample], folder: Path, version: int) -> tuple[Published, Probe]:
    """Trains the policy of `version`; returns the next one's weights, and what the engine must say with them."""
    learner.step(samples, version)
    tokens: Tokens = samples[0].token_ids
    [logprobs] = learner.logprobs([all_trained(tokens)])
    return publish(learner, folder, version + 1), Probe(token_ids=tokens, logprobs=logprobs)


async def reinforce(model: Path, folder: Path, steps: int = STEPS) -> list[float]:
    """Trains the model in `model`; returns the mean reward of each batch. The last weights are left in `folder`."""
    config = load(Recipe, find_recipe("tiny"))
    world, algorithm = world_of(config), config.rl.algorithm_of()
    assert world.site is not None
    site = Site(world.site.pages, world.site.hits)
    address = await site.start()
    tools = ToolExecutor(lambda: make_tools(config.tools, world, address), config.executor)
    engine = RolloutEngine(
        str(model),
        config=config.engine,
        agent=config.agent,
        reward=config.rl.reward,
        tools=tools,
        seed=config.seed,
    )
    await engine.ready()
    learner = Learner(model, config.model, config.rl.learner, steps=steps, objective=config.rl.objective())
    seen = 0

    async def play_batch(number: int) -> list[list[Scored]]:
        nonlocal seen
        numbers = range(number * GROUPS, (number + 1) * GROUPS)
        tasks = [world.training_task("rl", index, seed=config.seed) for index in numbers]
        groups = [orders_of(task, index, config.rl, config.agent) for task, index in zip(tasks, numbers, strict=True)]
        scored, seen = await play(engine, [order for group in groups for order in group], seen)
        return [scored[at : at + config.rl.group] for at in range(0, len(scored), config.rl.group)]

    rewards: list[float] = []
    try:
        playing = asyncio.ensure_future(play_batch(0))
        for version in range(steps):
            groups = await playing
            if version + 1 < steps:
                playing = asyncio.ensure_future(play_batch(version + 1))  # by the weights of before this batch's step
            samples = [
                sample
                for number, group in enumerate(groups)
                if algorithm.keep(group)  # a group of equal rewards teaches nothing
                for sample in to_samples(group, algorithm, number)
            ]
            weights, probe = await asyncio.to_thread(step, learner, samples, folder, version)
            report = await engine.sync(version + 1, weights, [probe])  # episodes under way go on with the new weights
            rewards.append(fmean(one.reward for group in groups for one in group))
            print(
                f"{version + 1:3d}  reward {rewards[-1]:.3f}  samples {len(samples):3d}  "
                f"log-probs differ by {report.logprob_diff:.1e}  paused {report.pause_s:.2f} s",
                flush=True,
            )
    finally:
        engine.shutdown()
        await tools.close()
        await site.stop()
    return rewards


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Reinforces a fine-tuned model on the demo's tasks.")
    parser.add_argument("model", type=Path, help="its folder, such as runs/demo/checkpoints/sft-model")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        os.environ |= {"LOCAL_RANK": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
        dist.init_process_group("gloo", init_method=f"file://{made}/store", rank=0, world_size=1)
        asyncio.run(reinforce(asked.model, Path(made)))
        dist.destroy_process_group()
