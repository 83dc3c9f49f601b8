"""Tokens per second of the agent loop, relative to vLLM's own offline `generate` on the same token counts.

    python -m benchmarks.engine [--smoke]

The loop is that of a run: the pool, an engine's actor and a tool executor whose tool answers without delay; episodes
are those of the policy of `benchmarks/speed/bench_loop.yaml`. Each round plays episodes through the loop and gives
their turns to `vllm.LLM.generate`: the same prompts and numbers of tokens, all known from the start, and all n-th turns
in one call. Its engine has the same settings and cores. `ratio` is relative to plain requests; `ratio_alike` to
requests like a run's, each with a seed and log-probs.

`large` is the same policy embedded in 32M parameters (`benchmarks/speed/grown.py`), `tiny` the policy itself, whose
speed is limited by overhead.
"""

import argparse
import asyncio
import itertools
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from actors.rollout.config import EngineConfig
from benchmarks.harness import report
from benchmarks.speed.grown import grow
from benchmarks.speed.runs import AT_ONCE, Bench, bench, measured
from coa.types import Tokens, Trajectory
from jobs.stages.reinforcement.groups import orders_of

ROUNDS = 3
TARGETS = {"large/ratio": ">= 0.85"}
Figures = dict[str, float]


@dataclass(frozen=True)
class Size:
    name: str
    at_once: int
    """Requests in a batch of the engine."""
    groups: int
    """Of a round and side."""


LARGE, TINY = Size("large", 64, 32), Size("tiny", 256, 128)
SMOKE = Size("tiny", 64, 16)


class Turn(NamedTuple):
    number: int
    prompt: Tokens
    tokens: int


def turns_of(trajectory: Trajectory) -> Iterator[Turn]:
    """What the policy was asked in an episode."""
    mask = np.concatenate([[False], trajectory.action_mask, [False]])
    starts, ends = np.flatnonzero(~mask[:-1] & mask[1:]), np.flatnonzero(mask[:-1] & ~mask[1:])
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        yield Turn(number, trajectory.token_ids[:start], int(end - start))


class Offline:
    """vLLM without an agent around it."""

    def __init__(self, model: Path, config: EngineConfig, max_tokens: int) -> None:
        from actors.rollout.device import arguments, environment

        os.environ.update(environment(config, cpu=True))
        from vllm import LLM

        settings = arguments(config, cpu=True, max_tokens=max_tokens, gpus=0)
        self._llm = LLM(model=str(model), skip_tokenizer_init=True, **settings)

    def seconds(self, turns: Sequence[Turn], *, alike: bool) -> float:
        """For all turns. alike: each with a seed and log-probs."""
        from vllm import SamplingParams

        def asked(index: int, turn: Turn) -> SamplingParams:
            how: dict[str, Any] = {"seed": index, "logprobs": 0, "flat_logprobs": True} if alike else {}
            return SamplingParams(max_tokens=turn.tokens, ignore_eos=True, detokenize=False, **how)

        self._llm.reset_prefix_cache()
        params = [asked(index, turn) for index, turn in enumerate(turns)]
        prompts: Any = [{"prompt_token_ids": turn.prompt.tolist()} for turn in turns]
        began = time.perf_counter()
        found = self._llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - began
        assert [len(one.outputs[0].token_ids) for one in found] == [turn.tokens for turn in turns]
        return took


async def play(ours: Bench, config: Any, groups: range) -> list[Trajectory]:
    run = ours.run_dir(config)
    orders = [
        order
        for number in groups
        for order in orders_of(run.training_task("rl", number), number, config.rl, config.agent)
    ]
    return [scored.trajectory for scored in await asyncio.gather(*map(ours.pool.play, orders))]


async def one_size(folder: Path, start: Path, console: Any, size: Size, rounds: int) -> Figures:
    found: dict[str, list[float]] = {"loop": [], "plain": [], "alike": []}
    async with bench(folder, start, console, AT_ONCE, f"engine.max_concurrent={size.at_once}") as ours:
        config = ours.recipe("engine")
        model = ours.start / "checkpoints" / "sft-model"
        offline = Offline(model, config.engine, config.agent.limits.max_tokens)
        for number in itertools.chain([-1], range(rounds)):  # the first round warms up
            began = time.perf_counter()
            first = (number + 1) * size.groups
            trajectories = await play(ours, config, range(first, first + size.groups))
            took = {"loop": time.perf_counter() - began}
            turns = sorted((turn for one in trajectories for turn in turns_of(one)), key=lambda turn: turn.number)
            for name in ("plain", "alike"):
                took[name] = offline.seconds(turns, alike=name == "alike")
            if number >= 0:
                tokens = sum(turn.tokens for turn in turns)
                for name, seconds in took.items():
                    found[name].append(tokens / seconds)
        del offline
    return {
        **{f"{size.name}/{name}_tokens_s": median(rates) for name, rates in found.items()},
        f"{size.name}/ratio": median(a / b for a, b in zip(found["loop"], found["plain"], strict=True)),
        f"{size.name}/ratio_alike": median(a / b for a, b in zip(found["loop"], found["alike"], strict=True)),
    }


def larger(start: Path, folder: Path) -> tuple[Path, int]:
    """A place that looks as `start`, with the large model; and its parameters."""
    shutil.copytree(start / "checkpoints", folder / "checkpoints", ignore=shutil.ignore_patterns("sft", "sft-model"))
    return folder, grow(start / "checkpoints" / "sft-model", folder / "checkpoints" / "sft-model")


async def measure(folder: Path, start: Path, console: Any, smoke: bool) -> Figures:
    if smoke:
        return await one_size(folder, start, console, SMOKE, 1)
    place, parameters = larger(start, folder / "large")
    figures = {"large/parameters": float(parameters)}
    figures |= await one_size(folder, place, console, LARGE, ROUNDS)
    return figures | await one_size(folder, start, console, TINY, ROUNDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="one round of the tiny model, hardly trained")
    smoke = parser.parse_args().smoke
    began = time.monotonic()
    figures = measured("engine", smoke, lambda folder, start, console: measure(folder, start, console, smoke))
    figures["took_s"] = time.monotonic() - began
    report("engine" + "_smoke" * smoke, figures, {} if smoke else TARGETS)


if __name__ == "__main__":
    main()
