"""The cost of `coa serve`: episodes per second through the whole server, relative to the rollout engine's own.

    python -m benchmarks.serve_agent            both models, for the figures
    python -m benchmarks.serve_agent --smoke    a check that it runs: few episodes, the tiny model, nothing written

Both sides play the same episodes: the same questions, profile and seeds, on an untrained policy with an enforced
grammar, with the tools of the tiny world; `same_tokens` is 1 if both sampled the same number of tokens. Both are up at
the same time and are measured in turns, with 64 concurrent episodes. `pool` is the setup of training and evaluation:
the driver's pool, an engine's actor and a tool executor's actor. The server answers chat completions, whole (`ratio`)
and streamed (`ratio_streamed`), to a client in its own process.
"""

import argparse
import asyncio
import functools
import itertools
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from actors.messages import EVALUATION, EpisodeId, EpisodeOrder
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.rollout.engine import RolloutEngine
from actors.tools.executor import ExecutorConfig
from actors.tools.remote import ExecutorActor
from benchmarks.harness import median_ratio, report
from benchmarks.load import ask
from benchmarks.served import NAME, coa_server, make_model
from cluster.engine_actor import launcher
from cluster.health import PoolConfig
from cluster.pool import EnginePool
from cluster.resources import PlacementConfig
from cluster.session import SessionConfig, session
from coa.agent.episode import AgentConfig, Grammar, Limits
from coa.demo.guest import TinyConfig, TinyWorld
from coa.grading.rewards import RewardConfig
from coa.grading.toolset import ToolsConfig
from coa.json_object import Json
from coa.types import Task
from jobs.run.agent_file import write_agent
from jobs.stages.services import make_tools

AT_ONCE, CONTEXT, PROFILE = 64, 512, "mhqa"
ENGINE = EngineConfig()
AGENT = AgentConfig(
    instructed=False,
    grammar=Grammar.enforce,
    limits=Limits(max_turns=6, max_turn_tokens=64, max_observation_tokens=64, max_tokens=384),
)
EPISODES = {"small": 64, "tiny": 192}
TARGETS = {f"ratio_{model}": ">= 0.8" for model in EPISODES}
Got = dict[str, Any]
SERIALS = itertools.count()


async def by_pool(pool: EnginePool, questions: Sequence[str]) -> Got:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, question: str) -> int:
        # As the server names an episode, so that its draws are the same.
        task = Task(id=str(number), question=question, answers=("x",), profile=PROFILE, family="served")
        id = EpisodeId(task.id, EVALUATION, 0, serial=next(SERIALS))
        async with room:
            played = await pool.play(EpisodeOrder(id=id, task=task, sampling=SamplingConfig(), agent=AGENT))
        return int(played.trajectory.action_mask.sum())

    began = time.perf_counter()
    tokens = sum(await asyncio.gather(*(one(number, question) for number, question in enumerate(questions))))
    return {"tokens": tokens, "seconds": time.perf_counter() - began}


async def measure(folder: Path, model: str, *, episodes: int, rounds: int) -> dict[str, float]:
    made = make_model(folder / model, model, CONTEXT)
    write_agent(made, AGENT)
    world = TinyWorld(TinyConfig())
    tasks = world.evaluation_tasks(len(world.profiles()) * episodes, seed=1)
    questions = [task.question for task in tasks if task.profile == PROFILE][:episodes]
    assert len(questions) == episodes
    tools = ExecutorActor(functools.partial(make_tools, ToolsConfig(), world, None), ExecutorConfig(), {"num_cpus": 0})
    launch = launcher(
        RolloutEngine,
        PlacementConfig(engine_cpus=1.0),
        tools,
        str(made),
        config=ENGINE,
        agent=AGENT,
        reward=RewardConfig(),
        seed=0,
    )
    pool = EnginePool(launch, PoolConfig(), AGENT, places=2 * ENGINE.max_concurrent, patience_s=60.0)
    pool.add()
    found: dict[str, list[Got]] = {"whole": [], "streamed": [], "pool": []}
    body = {"model": f"{NAME}:{PROFILE}", "temperature": 1.0}
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    settings = ("tasks.world=tiny", f"serving.profile={PROFILE}")
    try:
        await pool.ready()
        with coa_server(made, folder / f"coa-{model}.log", settings) as server:
            url = f"{server}/v1/chat/completions"

            async def asking(body: Json) -> Got:
                return await asyncio.to_thread(ask, "run", url=url, body=body, questions=questions, at_once=AT_ONCE)

            for round_ in range(1 + rounds):
                got = {
                    "whole": await asking({**body, "stream": False}),
                    "streamed": await asking({**body, **streamed}),
                    "pool": await by_pool(pool, questions),
                }
                for side, figures in got.items() if round_ else ():  # the first one compiles the grammars
                    found[side].append(figures)
    finally:
        await pool.stop()
    return figures_of(found, model, len(questions))


def figures_of(found: dict[str, list[Got]], model: str, episodes: int) -> dict[str, float]:
    rate = {side: [episodes / got["seconds"] for got in rounds] for side, rounds in found.items()}
    cores = os.cpu_count() or 1
    return {
        f"ratio_{model}": median_ratio(rate["whole"], rate["pool"]),
        f"ratio_streamed_{model}": median_ratio(rate["streamed"], rate["pool"]),
        **{f"episodes_s_{model}_{side}": median(rates) for side, rates in rate.items()},
        f"same_tokens_{model}": fmean(
            ours["tokens"] / theirs["tokens"] for ours, theirs in zip(found["whole"], found["pool"], strict=True)
        ),
        **{
            f"client_share_{model}_{side}": fmean(got["cpu_s"] / got["seconds"] / cores for got in found[side])
            for side in ("whole", "streamed")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true")
    smoke = parser.parse_args().smoke
    measured: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, session(SessionConfig()):
        for model in ("tiny",) if smoke else EPISODES:
            run = measure(Path(folder), model, episodes=EPISODES[model], rounds=1 if smoke else 2)
            measured |= asyncio.run(run)
    if smoke:
        print(measured)
        return
    report("serve_agent", measured, TARGETS)


if __name__ == "__main__":
    main()
