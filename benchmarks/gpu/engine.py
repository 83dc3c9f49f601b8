"""(c) An engine beside a learner on one card: start with its check, an update by `host` while requests are under way,
log-probs against the learner's in bfloat16, tokens a second, and sleep, a learner's work, and wake."""

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.models import Size, make_folder, samples_of

AT_ONCE, NEW_TOKENS, LONGEST = 64, 128, 1200


def measure(size: Size, folder: Path) -> dict[str, float]:
    return asyncio.run(_measure(size, make_folder(size, folder / "model")))


async def _measure(size: Size, model: Path) -> dict[str, float]:
    from actors.learner.config import ModelConfig
    from actors.learner.model.load import load_model
    from actors.learner.policy import PackedPolicy, to_tensors
    from actors.rollout.adapter import PolicyAdapter
    from actors.rollout.config import EngineConfig
    from actors.weights.manifest import serialise
    from coa.learning.packing import micro_batch

    cuda = size.device.type == "cuda"
    config = EngineConfig(dtype="bfloat16", max_concurrent=AT_ONCE, gpu_memory_utilization=0.5, sleep_mode=cuda)
    began = time.perf_counter()
    adapter = PolicyAdapter(str(model), config, max_tokens=LONGEST, tag_tokens=frozenset(), gpus=0.5 if cuda else 0.0)
    await adapter.name_version(0)
    figures = {"start_s": time.perf_counter() - began}
    policy = PackedPolicy(load_model(model, ModelConfig(dtype="bfloat16"))).to(size.device).eval()
    sample, *prompts = samples_of(size, 1 + AT_ONCE, seed=9)
    whole = np.ones(len(sample), np.bool_)
    whole[0] = False
    row = micro_batch([[_with_mask(sample, whole)]])

    async def apart() -> dict[str, float]:
        found = await adapter.logprobs(sample.token_ids)
        with torch.no_grad():
            expected = policy(**to_tensors(row, size.device)).float().cpu().numpy()
        far = np.abs(found - expected)
        return {"largest": float(far.max()), "mean": float(far.mean())}

    figures |= {f"logprobs_{name}": value for name, value in (await apart()).items()}
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.mul_(1.01)
    weights = serialise({name: p.detach().cpu() for name, p in policy.model.named_parameters()})
    began = time.perf_counter()
    loaded = asyncio.Event()

    async def keep_saying(prompt: Any, seed: int) -> int:
        """Turn after turn until the update is over."""
        tokens = await _say(adapter, prompt, seed)
        while not loaded.is_set():
            tokens += await _say(adapter, prompt, seed)
        return tokens

    playing = [asyncio.ensure_future(keep_saying(prompt, seed)) for seed, prompt in enumerate(prompts)]
    await asyncio.sleep(1.0)
    figures["pause_s"] = await adapter.load(1, weights)
    loaded.set()
    said = await asyncio.gather(*playing)
    figures["tokens_s_with_an_update"] = sum(said) / (time.perf_counter() - began)
    began = time.perf_counter()
    said = await asyncio.gather(*(_say(adapter, prompt, seed) for seed, prompt in enumerate(prompts)))
    figures["tokens_s"] = sum(said) / (time.perf_counter() - began)
    figures |= {f"updated_logprobs_{name}": value for name, value in (await apart()).items()}
    free = torch.cuda.mem_get_info()[0] if cuda else 0
    began = time.perf_counter()
    await adapter.sleep()
    figures["sleep_s"] = time.perf_counter() - began
    if cuda:
        figures["sleep_frees_gib"] = (torch.cuda.mem_get_info()[0] - free) / 2**30
    began = time.perf_counter()
    figures["pause_of_waking_s"] = await adapter.load(2, weights)
    figures["wake_and_update_s"] = time.perf_counter() - began
    figures |= {f"woken_logprobs_{name}": value for name, value in (await apart()).items()}
    adapter.shutdown()
    return figures


def _with_mask(sample: Any, mask: Any) -> Any:
    from dataclasses import replace

    return replace(sample, loss_mask=mask)


async def _say(adapter: Any, prompt: Any, seed: int) -> int:
    """Number of tokens of a turn."""
    from actors.rollout.config import SamplingConfig
    from coa.agent.codec import Stops
    from coa.agent.episode import Ask

    begin = prompt.token_ids[:20]
    ask = Ask(prompt=begin, turn=0, max_tokens=min(NEW_TOKENS, LONGEST - len(begin)), constraint=None)
    said = await adapter.generate(ask, sampling=SamplingConfig(), stops=Stops((), ()), seed=seed, priority=0)
    return len(said.token_ids)
