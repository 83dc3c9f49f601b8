"""One rank of the learner: DeepSpeed around a `PackedPolicy`. It takes samples and knows no algorithm."""

import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from actors.policy import ModelConfig, PackedPolicy, load_model, to_tensors
from coa.losses import LossConfig, compute_loss
from coa.packing import MicroBatch, PackingConfig, pack
from coa.types import ENVIRONMENT, Floats, Sample
from coa.weights import Weights, serialise


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW; the rate warms up, stays, and falls linearly to zero at the last step."""

    lr: float = 1e-6
    warmup_steps: int = 0
    flat_share: float = 1.0
    """Share of the steps at the full rate, warm-up included; the rest decays. 1 is a constant rate."""
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    """On matrices; norms have none."""
    clip_norm: float = 1.0


@dataclass(frozen=True)
class LearnerConfig:
    ranks: int = 1
    """Data-parallel ranks of the learner group."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    packing: PackingConfig = field(default_factory=PackingConfig)
    updates_per_batch: int = 1
    """Optimizer updates that a batch is split into; the version grows once a batch all the same."""
    zero_stage: int = 2
    threads: int = 1
    """CPU threads of a rank; 0 leaves the choice to PyTorch."""


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The rate of step `step` (from 0) of `steps`."""
    warm = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    flat = config.flat_share * steps
    left = 1.0 if step < flat else (steps - step) / (steps - flat)
    return config.lr * min(warm, left)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did, over all ranks."""

    samples: int
    tokens: int
    """Trained tokens."""
    loss: float
    """Mean over the trained tokens."""
    grad_norm: float
    clipped: float
    """Share of trained tokens whose ratio was clipped."""
    weight: float
    """Mean correction weight of reinforced tokens."""
    logprob_max_diff: float
    """Largest |learner - sampler| over tokens that the version being trained sampled; 0 where there were none."""
    staleness_mean: float
    """Versions, over sampled tokens."""
    staleness_max: int


class Learner:
    """Built on every rank after the process group is up; the methods are collective unless said otherwise."""

    def __init__(self, model_dir: Path, model: ModelConfig, config: LearnerConfig, *, steps: int) -> None:
        import deepspeed  # seconds to import, and only here

        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        self._steps = steps
        self.policy = PackedPolicy(load_model(model_dir, model))
        self.policy.train()
        decayed = [p for p in self.policy.parameters() if p.ndim >= 2]
        others = [p for p in self.policy.parameters() if p.ndim < 2]
        optimizer = torch.optim.AdamW(
            [
                {"params": decayed, "weight_decay": config.optimizer.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=config.optimizer.lr,
            betas=(config.optimizer.beta1, config.optimizer.beta2),
        )
        self.engine: Any
        self.engine, _, _, _ = deepspeed.initialize(
            model=self.policy, optimizer=optimizer, config=deepspeed_config(config)
        )
        self._optimizer = optimizer
        self.device: torch.device = self.engine.device

    def step(self, samples: Sequence[Sample], version: int) -> StepReport:
        """Trains this rank's samples of the batch of `version`. Ranks may hold different numbers of samples."""
        shares = [samples[i :: self.config.updates_per_batch] for i in range(self.config.updates_per_batch)]
        proximals = self._proximals(shares) if len(shares) > 1 else [None]
        rate = learning_rate(version, self._steps, self.config.optimizer)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        sums = Sums()
        for share, proximal in zip(shares, proximals, strict=True):
            self._update(share, proximal, version, sums)
        return sums.report()

    def _update(self, share: Sequence[Sample], proximal: list[Tensor] | None, version: int, sums: "Sums") -> None:
        batches = pack(share, self.config.packing) if share else []
        count, most = self._totals(sum(int(b.trained.sum()) for b in batches), len(batches))
        if count == 0:
            return
        world = dist.get_world_size()
        for index, batch in itertools.islice(enumerate(itertools.chain(batches, itertools.repeat(None))), most):
            if batch is None:  # another rank has more: take part in its collectives with a loss of zero
                self.engine.backward(0.0 * self.engine(**to_tensors(_filler(), self.device)).sum())
                continue
            logprobs = self.engine(**to_tensors(batch, self.device))
            mask = batch.trained
            sampled, imitate, reinforce = (
                torch.from_numpy(array[mask]).to(self.device)
                for array in (batch.sampled_logprobs, batch.imitate, batch.reinforce)
            )
            terms = compute_loss(
                logprobs,
                proximal=proximal[index] if proximal else logprobs.detach(),
                sampled=sampled,
                imitate=imitate,
                reinforce=reinforce,
                count=count,
                config=self.config.loss,
            )
            self.engine.backward(terms.loss * world)  # DeepSpeed averages gradients over the ranks; the loss is a sum
            sums.add(batch, terms.loss.item() * count, terms.clipped.item(), terms.weight_sum.item(), version)
            sums.compare(batch, (proximal[index] if proximal else logprobs.detach()).cpu().numpy(), version)
        self.engine.step()
        sums.grad_norm = float(self.engine.get_global_grad_norm() or 0.0)
        sums.samples += len(share)

    def _totals(self, tokens: int, micro_batches: int) -> tuple[int, int]:
        """Trained tokens of all ranks, and the largest number of micro-batches of any."""
        total = torch.tensor(tokens, device=self.device)
        most = torch.tensor(micro_batches, device=self.device)
        dist.all_reduce(total)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(total), int(most)

    def _proximals(self, shares: list[Sequence[Sample]]) -> list[list[Tensor]]:
        """Log-probs before the first update of a batch, laid out as `_update` packs each share."""
        found: list[list[Tensor]] = []
        with torch.no_grad():
            for share in shares:
                batches = pack(share, self.config.packing) if share else []
                _, most = self._totals(0, len(batches))
                found.append([self.engine(**to_tensors(batch, self.device)) for batch in batches])
                for _ in range(most - len(batches)):  # with ZeRO-3 each forward pass is a collective
                    self.engine(**to_tensors(_filler(), self.device))
        return found

    def logprobs(self, samples: Sequence[Sample]) -> list[Floats]:
        """For each sample, float32 log-probs of its trained tokens, in order."""
        from coa.packing import micro_batch

        with torch.no_grad():
            batches = [micro_batch([[sample]]) for sample in samples]
            return [self.engine(**to_tensors(batch, self.device)).cpu().numpy() for batch in batches]

    def weights(self) -> Weights | None:
        """All parameters by their Hugging Face names, on rank 0; None on the others."""
        import deepspeed

        parameters = list(self.policy.model.named_parameters())
        stage3 = self.config.zero_stage == 3
        with deepspeed.zero.GatheredParameters([p for _, p in parameters], enabled=stage3):
            if dist.get_rank() != 0:
                return None
            return serialise({name: p.detach() for name, p in parameters})

    def save_model(self, folder: Path) -> None:
        """Hugging Face layout, written by rank 0; appears whole or not at all."""
        weights = self.weights()
        if weights is None:
            return
        part = folder.with_name(folder.name + ".part")
        self.policy.model.config.save_pretrained(part)
        self.policy.model.generation_config.save_pretrained(part)
        weights.tofile(part / "model.safetensors")
        shutil.rmtree(folder, ignore_errors=True)
        part.replace(folder)

    def save(self, folder: Path) -> None:
        """A checkpoint from which `restore` goes on; every rank writes its part."""
        self.engine.save_checkpoint(str(folder), tag="state")

    def restore(self, folder: Path) -> None:
        self.engine.load_checkpoint(str(folder), tag="state")


class Sums:
    """This rank's running sums of one step; `report` adds up the ranks (a collective)."""

    def __init__(self) -> None:
        self.samples = 0
        self.grad_norm = 0.0
        self._tokens = self._loss = self._clipped = self._weight = self._reinforced = 0.0
        self._staleness = self._sampled = 0.0
        self._oldest = 0
        self._diff = 0.0

    def add(self, batch: MicroBatch, loss: float, clipped: float, weight: float, version: int) -> None:
        self._tokens += int(batch.trained.sum())
        self._loss += loss
        self._clipped += clipped
        self._weight += weight
        self._reinforced += int((batch.reinforce[batch.trained] != 0).sum())
        ages = version - batch.versions[batch.trained & (batch.versions != ENVIRONMENT)]
        if len(ages):
            self._staleness += float(ages.sum())
            self._sampled += len(ages)
            self._oldest = max(self._oldest, int(ages.max()))

    def compare(self, batch: MicroBatch, logprobs: Floats, version: int) -> None:
        fresh = batch.versions[batch.trained] == version
        if fresh.any():
            difference = np.abs(logprobs - batch.sampled_logprobs[batch.trained])[fresh]
            self._diff = float(np.max([self._diff, difference.max()]))  # unlike max(), this keeps NaN

    def report(self) -> StepReport:
        added = [self.samples, self._tokens, self._loss, self._clipped, self._weight, self._reinforced]
        sums = torch.tensor([*added, self._staleness, self._sampled], dtype=torch.float64)
        most = torch.tensor([self._oldest, self._diff], dtype=torch.float64)
        if dist.get_backend() == "nccl":
            sums, most = sums.cuda(), most.cuda()
        dist.all_reduce(sums)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        samples, tokens, loss, clipped, weight, reinforced, staleness, sampled = sums.tolist()
        return StepReport(
            samples=int(samples),
            tokens=int(tokens),
            loss=loss / max(tokens, 1),
            grad_norm=self.grad_norm,
            clipped=clipped / max(tokens, 1),
            weight=weight / reinforced if reinforced else 1.0,
            logprob_max_diff=float(most[1]),
            staleness_mean=staleness / max(sampled, 1),
            staleness_max=int(most[0]),
        )


def _filler() -> MicroBatch:
    """Two tokens of which the second is trained: a rank that has run out of samples computes something."""
    zeros = np.zeros((1, 2), np.float32)
    ids = np.zeros((1, 2), np.int32)
    return MicroBatch(
        token_ids=ids,
        positions=np.array([[0, 1]], np.int32),
        segments=np.ones((1, 2), np.int32),
        trained=np.array([[False, True]]),
        imitate=zeros,
        reinforce=zeros,
        sampled_logprobs=zeros,
        versions=ids,
    )


def deepspeed_config(config: LearnerConfig) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 1,
        # The number of micro-batches differs from step to step: the caller says when a batch is whole.
        "managed_gradient_accumulation": False,
        "gradient_clipping": config.optimizer.clip_norm,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": config.zero_stage, "overlap_comm": False},
        "steps_per_print": 10**9,
    }
