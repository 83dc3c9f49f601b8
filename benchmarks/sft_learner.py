"""The learner against a bare PyTorch loop over the same model and packed batches, and against TRL's SFTTrainer.

    python -m benchmarks.sft_learner [--smoke] [--demo RUN]

All three train the tiny recipe's model with float32 AdamW on the same demonstrations, 64 a step, in turns. Tokens are
those of the demonstrations: padding is nobody's work. TRL takes part where it can be imported; it pads the 64, since
its packing needs flash attention. It runs in a process of its own, since beside a process group it would wrap the
model for several ranks; its steps are timed from start to end, without the first and without the trainer's set-up.

Learner and bare loop are measured once more while another process keeps a core busy. `--demo` adds the seconds that the
SFT stage of a finished run of the tiny recipe took, from the run's report.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.learner import Learner
from actors.learner.model.load import load_model, new_model
from actors.learner.policy import PackedPolicy, to_tensors
from benchmarks.harness import PEER, median_ratio, report, step_clock
from benchmarks.speed.cores import OTHERS, busy
from coa.agent.tokenizer import save_tokenizer, train_tokenizer
from coa.demo import World, WorldConfig
from coa.learning.packing import MicroBatch, PackingConfig, pack
from coa.learning.schedule import OptimizerConfig
from coa.types import ENVIRONMENT, Sample

ROUNDS = 5
BUSY = "_busy"
"""Ends the names of what was measured beside a busy core."""
TARGETS = {"ratio_to_bare": ">= 0.95", f"ratio_to_bare{BUSY}": ">= 0.95"}
PEER_TARGETS, DEMO_TARGETS = {"ratio_to_trl": ">= 1.0"}, {"demo_sft_s": "<= 180"}
STEPS = 4
"""Of a round and side."""
BATCH = 64
PACKING = PackingConfig(row_tokens=192, rows=8)
RATE = OptimizerConfig(lr=1e-3, weight_decay=0.05)
SIZES = ModelConfig(
    hidden_size=128, layers=4, heads=4, key_value_heads=2, head_dim=32, intermediate_size=256, max_positions=512
)


def make_start(folder: Path) -> int:
    """A model of the tiny recipe's size in `folder`; returns the size of its vocabulary."""
    world = World(WorldConfig())
    tokenizer = train_tokenizer(list(world.wiki_pages.values())[:200], world.lexicon(), vocabulary=2000)
    save_tokenizer(tokenizer, folder)
    new_model(SIZES, tokenizer, seed=0).save_pretrained(folder)
    return tokenizer.get_vocab_size()


def make_demonstrations(count: int, vocabulary: int) -> list[Sample]:
    """30 to 150 tokens, of which all but a prompt and some observations are trained."""
    rng = np.random.default_rng(0)
    samples: list[Sample] = []
    for _ in range(count):
        length = int(rng.integers(30, 150))
        loss_mask = np.arange(length) >= 20
        loss_mask[length // 2 : length // 2 + 10] = False
        zeros = np.zeros(length, np.float32)
        samples.append(
            Sample(
                token_ids=rng.integers(10, vocabulary, length).astype(np.int32),
                loss_mask=loss_mask,
                imitate=loss_mask.astype(np.float32),
                reinforce=zeros,
                rollout_logprobs=zeros,
                versions=np.full(length, ENVIRONMENT, np.int32),
            )
        )
    return samples


class Ours:
    def __init__(self, folder: Path) -> None:
        config = LearnerConfig(optimizer=RATE, packing=PACKING, threads=1)
        objective = Objective(algorithm="imitation")
        self.learner = Learner(folder, ModelConfig(), config, steps=10**6, objective=objective)

    def __call__(self, batches: Sequence[Sequence[Sample]]) -> None:
        for version, batch in enumerate(batches):
            self.learner.step(batch, version)


class Bare:
    """What anyone would write: forward, backward, clip, step. The batches come packed."""

    def __init__(self, folder: Path) -> None:
        self.policy = PackedPolicy(load_model(folder, ModelConfig())).train()
        parameters = list(self.policy.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": RATE.weight_decay},
                {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
            ],
            lr=RATE.lr,
            betas=(RATE.beta1, RATE.beta2),
        )

    def __call__(self, batches: Sequence[Sequence[MicroBatch]]) -> None:
        device = torch.device("cpu")
        for micro_batches in batches:
            count = sum(len(batch.trained) for batch in micro_batches)
            for batch in micro_batches:
                loss = -self.policy(**to_tensors(batch, device)).sum() / count
                loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), RATE.clip_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()


def trl_beside(folder: Path) -> float:
    """`trl_seconds` in a process of its own, on one thread as the others."""
    environment = {name: value for name, value in os.environ.items() if name != "LOCAL_RANK"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.sft_learner", "--trl", str(folder)]
    printed = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    return float(printed.splitlines()[-1])


def trl_seconds(folder: Path) -> float:
    """SFTTrainer on the same demonstrations: seconds of its steps but the first."""
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl.trainer.sft_config import SFTConfig  # pyright: ignore[reportMissingImports]
    from trl.trainer.sft_trainer import SFTTrainer  # pyright: ignore[reportMissingImports]

    took: list[float] = []
    torch.set_num_threads(1)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    samples = make_demonstrations(STEPS * BATCH, len(tokenizer))
    samples = [*samples[:BATCH], *samples]
    rows = [{"input_ids": s.token_ids.tolist(), "completion_mask": s.loss_mask.astype(int).tolist()} for s in samples]
    arguments = SFTConfig(
        output_dir=tempfile.mkdtemp(dir=folder),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS + 1,
        learning_rate=RATE.lr,
        lr_scheduler_type="constant",
        weight_decay=RATE.weight_decay,
        max_grad_norm=RATE.clip_norm,
        adam_beta2=RATE.beta2,
        **PEER,
        max_length=None,
    )
    trainer = SFTTrainer(
        model=load_model(folder, ModelConfig()),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[step_clock(took)],
    )
    trainer.train()
    return sum(took[1:])


@dataclass(frozen=True)
class Measured:
    tokens: int
    """Of a round."""
    seconds: dict[str, list[float]]


def measure(folder: Path, *, peer: bool, rounds: int) -> Measured:
    torch.set_num_threads(1)
    samples = make_demonstrations(STEPS * BATCH, make_start(folder))
    batches = [samples[i : i + BATCH] for i in range(0, len(samples), BATCH)]
    packed = [pack(batch, PACKING) for batch in batches]
    ours, bare = Ours(folder), Bare(folder)
    seconds: dict[str, list[float]] = {}
    for ending in ("", BUSY):
        with busy(OTHERS) if ending else nullcontext():
            for number in range(1 + rounds):
                spent = in_steps(ours, bare, batches, packed)
                if number == 0:  # the first round warms up
                    continue
                if peer and not ending:
                    spent["trl"] = trl_beside(folder)
                for name, value in spent.items():
                    seconds.setdefault(name + ending, []).append(value)
    return Measured(sum(map(len, samples)), seconds)


def in_steps(ours: Ours, bare: Bare, batches: Sequence[Any], packed: Sequence[Any]) -> dict[str, float]:
    """Seconds of each side. Step by step in turns: a busy moment of the machine meets both."""
    spent = {"ours": 0.0, "bare": 0.0}
    for one, its_packed in zip(batches, packed, strict=True):
        began = time.perf_counter()
        ours([one])
        between = time.perf_counter()
        bare([its_packed])
        spent["ours"] += between - began
        spent["bare"] += time.perf_counter() - between
    return spent


def figures_of(measured: Measured) -> dict[str, float]:
    seconds = measured.seconds
    figures = {f"{name}_tokens_per_s": measured.tokens / median(times) for name, times in seconds.items()}
    for ending in ("", BUSY):
        figures[f"ratio_to_bare{ending}"] = median_ratio(seconds[f"bare{ending}"], seconds[f"ours{ending}"])
    if "trl" in seconds:
        figures["ratio_to_trl"] = median_ratio(seconds["trl"], seconds["ours"])
    return figures


def demo_seconds(told: Mapping[str, Any]) -> float:
    """Seconds of the SFT stage. told: the report of a run. Raises SystemExit if the run is not finished."""
    stage = told.get("stages", {}).get("sft")
    if stage is None or not stage["steps"]:
        raise SystemExit("the report has no SFT stage: --demo takes the folder of a finished run")
    return stage["seconds"]


def main() -> None:
    import torch.distributed as dist

    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="one round")
    parser.add_argument("--demo", type=Path, metavar="RUN", help="the folder of a finished run of the tiny recipe")
    parser.add_argument("--trl", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trl:
        print(trl_seconds(given.trl))
        return
    demo = {}
    if given.demo:
        demo = {"demo_sft_s": demo_seconds(json.loads((given.demo / "report.json").read_text()))}
    peer = find_spec("trl") is not None
    if not peer:
        print("TRL is not installed: `pip install trl` lets it take part", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LOCAL_RANK"] = "0"
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        measured = measure(Path(folder), peer=peer, rounds=1 if given.smoke else ROUNDS)
        dist.destroy_process_group()
    targets = {**TARGETS, **(PEER_TARGETS if peer else {}), **(DEMO_TARGETS if demo else {})}
    report("sft_learner" + "_smoke" * given.smoke, {**figures_of(measured), **demo}, targets)


if __name__ == "__main__":
    main()
