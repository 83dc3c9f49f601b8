"""A learner's step with tokens that samples share computed once, compared with each sample computed whole.

    python -m benchmarks.prefix_trees [--run runs/demo] [--smoke]

Batches of 2 groups of 8 trajectories, whose prompts are as long as real ones and which share nothing else, on a model
of 32M parameters and one thread; both sides compute DAPO's step, in turns. Memory is the peak of a process that does
the same step, minus its memory before the model. `--run`: also on batches that a finished run has recorded, whose
trajectories share more than their prompts, with its model and its packing.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.learner import Learner
from benchmarks.harness import in_turns, median_ratio, report
from benchmarks.learner import GROUP, LARGE, RATE, VERSION, join, make_start, peak_bytes
from coa.learning.batches import BatchStore
from coa.learning.packing import PackingConfig
from coa.types import ENVIRONMENT, Sample

PROMPTS = {"own_tasks": 45, "mhqa": 220, "multi": 400}
"""Tokens of a question with a chat template, without instructions and with those of two profiles, by the tokenizer of
SmolLM2."""
OWN = (60, 200)
"""Tokens of a trajectory behind its prompt, from and to."""
GROUPS, ROUNDS, RECORDED = 2, 3, 6
PACKING = PackingConfig(row_tokens=4096)
TARGETS = {"mhqa/speedup": ">= 1.5", "multi/speedup": ">= 1.5", "own_tasks/speedup": ">= 1", "memory_ratio": "<= 1"}
SIDES = {"shared": True, "whole": False}


def make_groups(prompt: int, vocabulary: int) -> list[Sample]:
    rng = np.random.default_rng(1)
    found: list[Sample] = []
    for group in range(GROUPS):
        question = rng.integers(0, vocabulary, prompt)
        for _ in range(GROUP):
            token_ids = np.concatenate([question, rng.integers(0, vocabulary, rng.integers(*OWN))]).astype(np.int32)
            sampled = np.arange(len(token_ids)) >= prompt
            found.append(
                Sample(
                    token_ids=token_ids,
                    loss_mask=sampled,
                    imitate=np.zeros(len(token_ids), np.float32),
                    reinforce=np.where(sampled, rng.normal(), 0).astype(np.float32),
                    rollout_logprobs=np.where(sampled, -7.0, 0).astype(np.float32),
                    versions=np.where(sampled, VERSION, ENVIRONMENT).astype(np.int32),
                    group=group,
                )
            )
    return found


def learner(folder: Path, packing: PackingConfig, *, share: bool) -> Learner:
    config = LearnerConfig(optimizer=RATE, packing=replace(packing, share_prefixes=share), threads=1)
    return Learner(folder, ModelConfig(), config, steps=10**6, objective=Objective())


def speeds(folder: Path, batches: Sequence[Sequence[Sample]], packing: PackingConfig, rounds: int) -> dict[str, float]:
    learners = {name: learner(folder, packing, share=share) for name, share in SIDES.items()}
    shared: list[float] = []

    def step(name: str) -> None:
        for batch in batches:
            made = learners[name].step(batch, VERSION)
            shared.extend([made.shared_fraction] * SIDES[name])

    seconds = in_turns({name: lambda name=name: step(name) for name in SIDES}, 1 + rounds)
    seconds = {name: took[1:] for name, took in seconds.items()}
    return {
        "tokens": sum(map(len, (sample for batch in batches for sample in batch))) / len(batches),
        "shared_fraction": sum(shared) / len(shared),
        **{f"{name}_s": median(took) / len(batches) for name, took in seconds.items()},
        "speedup": median_ratio(seconds["whole"], seconds["shared"]),
    }


def recorded(run: Path) -> tuple[list[list[Sample]], PackingConfig]:
    """Batches from all over the run, whose staleness is as if they were sampled just now, and its packing."""
    from omegaconf import OmegaConf

    store = BatchStore(run / "batches")
    steps = store.steps()
    chosen = [steps[round(at)] for at in np.linspace(0, len(steps) - 1, RECORDED)]
    settings = OmegaConf.load(run / "config.yaml").rl.learner.packing
    packing = PackingConfig(row_tokens=settings.row_tokens, rows=settings.rows)
    batches = [[sample for share in store.read(step) for sample in share] for step in chosen]
    return [
        [replace(s, versions=np.where(s.versions != ENVIRONMENT, VERSION, ENVIRONMENT).astype(np.int32)) for s in batch]
        for batch in batches
    ], packing


def memory(folder: Path, side: str) -> float:
    torch.set_num_threads(1)
    import deepspeed  # noqa: F401, which is no part of what is measured

    samples = make_groups(PROMPTS["multi"], json.loads((folder / "config.json").read_text())["vocab_size"])
    return peak_bytes(lambda: learner(folder, PACKING, share=SIDES[side]), lambda made: made.step(samples, VERSION))


def beside(folder: Path, side: str) -> float:
    command = [sys.executable, "-m", "benchmarks.prefix_trees", "--memory", side, str(folder)]
    return float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run", type=Path, help="a finished run that has recorded its batches")
    parser.add_argument("--smoke", action="store_true", help="the shortest prompts, one round")
    parser.add_argument("--memory", nargs=2, metavar=("SIDE", "FOLDER"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.memory:
        side, folder = given.memory
        join(folder)
        print(memory(Path(folder), side))
        torch.distributed.destroy_process_group()
        return
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        join(folder)
        vocabulary = make_start(Path(folder, "large"), LARGE)
        for name in list(PROMPTS)[: 1 if given.smoke else None]:
            samples = make_groups(PROMPTS[name], vocabulary)
            found = speeds(Path(folder, "large"), [samples], PACKING, 1 if given.smoke else ROUNDS)
            figures |= {f"{name}/{key}": value for key, value in found.items()}
        if given.run:
            found = speeds(given.run / "model", *recorded(given.run), 1 if given.smoke else ROUNDS)
            figures |= {f"recorded/{key}": value for key, value in found.items()}
        peaks = {side: beside(Path(folder, "large"), side) for side in SIDES}
        torch.distributed.destroy_process_group()
    figures |= {f"{side}_peak_mb": peak / 2**20 for side, peak in peaks.items()}
    figures["memory_ratio"] = peaks["shared"] / peaks["whole"]
    kept = {name: target for name, target in TARGETS.items() if name in figures}
    report("prefix_trees" + "_smoke" * given.smoke, figures, kept)


if __name__ == "__main__":
    main()
