"""A real engine of two workers (vLLM) as the pool starts it: an actor in a placement group, both of them below it."""

import asyncio
from pathlib import Path

import psutil
import pytest
import ray
from safetensors.torch import load_file

from actors.messages import Probe
from actors.rollout.config import EngineConfig
from actors.rollout.engine import RolloutEngine
from actors.tools.executor import ExecutorConfig
from actors.tools.remote import ExecutorActor
from actors.weights.checks.path_check import probe_tokens
from actors.weights.manifest import serialise
from cluster.engine_actor import launcher
from cluster.resources import PlacementConfig
from coa.grading.rewards import RewardConfig
from tests.support.engines import publication
from tests.support.tiny import AGENT, make_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
ENDS_S = 20.0


def test_it_starts_takes_weights_and_leaves_no_process_behind(tmp_path: Path) -> None:
    first, second = (make_model(tmp_path / str(seed), seed=seed, initializer_range=0.2) for seed in (0, 1))
    launch = launcher(
        RolloutEngine,
        PlacementConfig(engine_cpus=1.0),
        ExecutorActor(dict, ExecutorConfig(), {"num_cpus": 0}),
        str(first),
        config=EngineConfig(tensor_parallel=2, max_concurrent=8, kv_cache_gib=0.25),
        agent=AGENT,
        reward=RewardConfig(),
        seed=0,
    )
    tokens = probe_tokens(100, 64)

    async def go() -> None:
        engine = await launch("one")
        actor = psutil.Process(await engine.ready())
        before = await engine.logprobs(tokens)
        weights = ray.put(serialise(load_file(second / "model.safetensors")))
        report = await engine.sync(publication(1, weights, (Probe(token_ids=tokens, logprobs=before),)))
        assert report.version == 1
        assert report.logprob_diff > 0.1, "other weights"
        below = actor.children(recursive=True)
        assert sum("Worker" in " ".join(one.cmdline()) for one in below) == 2
        engine.kill()
        _, left = await asyncio.to_thread(psutil.wait_procs, [actor, *below], ENDS_S)
        assert all(one.status() == psutil.STATUS_ZOMBIE for one in left)

    asyncio.run(go())
