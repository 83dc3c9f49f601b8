"""The RL learner compared with a bare PyTorch loop over the same model and packed batches: throughput and memory.

    python -m benchmarks.learner [--smoke]

Both compute DAPO's step with its correction (`coa.learning.losses`) on 256 trajectories, with AdamW in float32; the
bare loop gets packed batches, and records no metrics. Steps of the two are timed in turns. Memory is the peak of a
process that trains the large model, minus its memory before loading the model; each side has its own process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch

from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.learner import Learner
from actors.learner.model.load import load_model, new_model
from actors.learner.policy import PackedPolicy, to_tensors
from benchmarks.harness import median_ratio, report
from benchmarks.sft_learner import SIZES, make_demonstrations
from coa.agent.tokenizer import save_tokenizer, train_tokenizer
from coa.demo import World, WorldConfig
from coa.learning.losses import LossConfig
from coa.learning.packing import MicroBatch, PackingConfig, pack
from coa.learning.schedule import OptimizerConfig
from coa.types import Sample

LARGE = replace(SIZES, hidden_size=512, intermediate_size=1536, layers=10, heads=16, key_value_heads=8)
"""32M parameters."""
PACKING = PackingConfig(row_tokens=192, rows=8)
RATE = OptimizerConfig(lr=3e-4)
GROUP, VERSION = 8, 1
BATCH, STEPS, ROUNDS = 256, 2, 5
TARGETS = {"tiny/ratio": ">= 0.95", "large/ratio": ">= 0.95", "memory_ratio": "<= 1.05"}
Figures = dict[str, float]


def make_start(folder: Path, sizes: ModelConfig) -> int:
    """A model of these sizes in `folder`; returns the size of its vocabulary."""
    world = World(WorldConfig())
    tokenizer = train_tokenizer(list(world.wiki_pages.values())[:200], world.lexicon(), vocabulary=2000)
    save_tokenizer(tokenizer, folder)
    new_model(sizes, tokenizer, seed=0).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def make_samples(count: int, vocabulary: int) -> list[Sample]:
    """Trajectories of 30 to 150 tokens, sampled by this version and the one before."""
    rng = np.random.default_rng(1)
    found = []
    for index, one in enumerate(make_demonstrations(count, vocabulary)):
        zeros = np.zeros(len(one), np.float32)
        found.append(
            replace(
                one,
                imitate=zeros,
                reinforce=np.where(one.loss_mask, np.float32(rng.normal()), np.float32(0)),
                rollout_logprobs=np.where(one.loss_mask, np.float32(-7.0), np.float32(0)),
                versions=np.where(one.loss_mask, VERSION - index % 2, -1).astype(np.int32),
                group=index // GROUP,
            )
        )
    return found


class Ours:
    def __init__(self, folder: Path) -> None:
        config = LearnerConfig(optimizer=RATE, packing=PACKING, threads=1)
        self.learner = Learner(folder, ModelConfig(), config, steps=10**6, objective=Objective())

    def __call__(self, samples: Sequence[Sample]) -> None:
        self.learner.step(samples, VERSION)


class Bare:
    """What anyone would write: forward, backward, clip, step."""

    def __init__(self, folder: Path) -> None:
        self.policy = PackedPolicy(load_model(folder, ModelConfig())).train()
        betas = (RATE.beta1, RATE.beta2)
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(), lr=RATE.lr, betas=betas, weight_decay=0.0, fused=True
        )

    def __call__(self, batches: Sequence[MicroBatch]) -> None:
        count = sum(len(batch.trained) for batch in batches)
        for batch in batches:
            logprobs = self.policy(**to_tensors(batch, torch.device("cpu")))
            (surrogate(logprobs, batch) / count).backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), RATE.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()


def surrogate(logprobs: torch.Tensor, batch: MicroBatch, config: LossConfig | None = None) -> torch.Tensor:
    """The sum over a micro-batch's trained tokens, [P]."""
    config = config or LossConfig()
    advantages = torch.from_numpy(batch.reinforce)
    before = logprobs.detach()
    weights = (before - torch.from_numpy(batch.rollout_logprobs)).exp().clamp(max=config.correction_cap)
    ratios = (logprobs - before).exp()
    clipped = ratios.clamp(1 - config.clip_low, 1 + config.clip_high)
    return -(weights * torch.minimum(ratios * advantages, clipped * advantages)).sum()


def speeds(folder: Path, sizes: ModelConfig, count: int, rounds: int) -> Figures:
    samples = make_samples(count * STEPS, make_start(folder, sizes))
    batches = [samples[at : at + count] for at in range(0, len(samples), count)]
    ours, bare = Ours(folder), Bare(folder)
    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for number in range(1 + rounds):
        spent = {"ours": 0.0, "bare": 0.0}
        for batch in batches:
            packed = pack(batch, PACKING)
            began = time.perf_counter()
            ours(batch)
            between = time.perf_counter()
            bare(packed)
            spent["ours"] += between - began
            spent["bare"] += time.perf_counter() - between
        if number:  # the first round warms up
            for name, value in spent.items():
                seconds[name].append(value)
    tokens = sum(map(len, samples))
    rates = {f"{name}_tokens_s": tokens / median(times) for name, times in seconds.items()}
    return {**rates, "ratio": median_ratio(seconds["bare"], seconds["ours"])}


def memory(folder: Path, side: str, count: int) -> float:
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401, as both sides are to have it

    samples = make_samples(count, json.loads((folder / "config.json").read_text())["vocab_size"])
    packed = pack(samples, PACKING)
    return peak_bytes(
        lambda: Ours(folder) if side == "ours" else Bare(folder),
        lambda made: made(samples if side == "ours" else packed),
    )


def peak_bytes(make: Callable[[], Any], step: Callable[[Any], object]) -> float:
    """Bytes at the peak of this process after three steps, over those that it had before."""
    before = psutil.Process().memory_info().rss
    made = make()
    for _ in range(3):
        step(made)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(peak.split()[1]) * 1024 - before


def beside(folder: Path, side: str, count: int) -> float:
    command = [sys.executable, "-m", "benchmarks.learner", "--memory", side, str(folder), "--count", str(count)]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(printed.splitlines()[-1])


def join(folder: str) -> None:
    import torch.distributed as dist

    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group("gloo", init_method=f"file://{folder}/store-{os.getpid()}", rank=0, world_size=1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="small batches, one round")
    parser.add_argument("--memory", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, default=BATCH, help="trajectories of a step")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.memory:
        side, folder = given.memory
        join(folder)
        print(memory(Path(folder), side, given.count))
        torch.distributed.destroy_process_group()
        return
    count, rounds = (32, 1) if given.smoke else (given.count, ROUNDS)
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        join(folder)
        for name, sizes in (("tiny", SIZES), ("large", LARGE)):
            place = Path(folder, name)
            found = speeds(place, sizes, count if name == "tiny" else count // 4, rounds)
            figures |= {f"{name}/{key}": value for key, value in found.items()}
        peaks = {side: beside(Path(folder, "large"), side, count // 4) for side in ("ours", "bare")}
        torch.distributed.destroy_process_group()
    figures |= {f"{side}_peak_mb": peak / 2**20 for side, peak in peaks.items()}
    figures["memory_ratio"] = peaks["ours"] / peaks["bare"]
    report("learner" + "_smoke" * given.smoke, figures, TARGETS)


if __name__ == "__main__":
    main()
