"""One rank of the learner: DeepSpeed around a `PackedPolicy`. It takes samples and knows no algorithm."""

import itertools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from actors.learner_config import LearnerConfig
from actors.lora import add_adapters, sources
from actors.policy import ModelConfig, PackedPolicy, load_model, to_tensors
from actors.step_report import StepReport, Sums
from actors.zero import deepspeed_config, join_process_group, shared_out_loading, whole
from coa.losses import compute_loss
from coa.packing import MicroBatch, micro_batch, pack
from coa.schedule import learning_rate
from coa.types import Floats, Sample
from coa.weights import Weights, serialise


class Learner:
    """Built on every rank after the process group is up; the methods are collective unless said otherwise."""

    def __init__(self, model_dir: Path, model: ModelConfig, config: LearnerConfig, *, steps: int) -> None:
        import deepspeed  # seconds to import, and only here

        join_process_group()
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config
        self._steps = steps
        settings = deepspeed_config(config, model.dtype)
        with shared_out_loading(settings, model_dir):
            hf_model = load_model(model_dir, model)
        if config.lora.rank:
            add_adapters(hf_model, config.lora)
        if config.gradient_checkpointing:
            hf_model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.policy = PackedPolicy(hf_model)
        self.policy.train()
        self._optimizer = make_optimizer(self.policy, config)
        self.engine: Any
        self.engine, _, _, _ = deepspeed.initialize(model=self.policy, optimizer=self._optimizer, config=settings)
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
        with torch.no_grad():
            batches = [micro_batch([[sample]]) for sample in samples]
            return [self.engine(**to_tensors(batch, self.device)).cpu().numpy() for batch in batches]

    def weights(self) -> Weights | None:
        """All weights by their Hugging Face names, adapters merged, on rank 0; None on the others."""
        state = dict(whole(sources(self.policy.model), shared_out=self.config.zero_stage == 3))
        return serialise(state) if dist.get_rank() == 0 else None

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
        """A checkpoint from which `restore` goes on; every rank writes its part, frozen weights are left out."""
        frozen = self.config.lora.rank > 0
        self.engine.save_checkpoint(str(folder), tag="state", exclude_frozen_parameters=frozen)

    def restore(self, folder: Path) -> None:
        frozen = self.config.lora.rank > 0
        self.engine.load_checkpoint(str(folder), tag="state", load_module_strict=not frozen)


def make_optimizer(policy: PackedPolicy, config: LearnerConfig) -> torch.optim.Optimizer:
    """AdamW over what is trained; weight decay on matrices alone."""
    trained = [p for p in policy.parameters() if p.requires_grad]
    return torch.optim.AdamW(
        [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.optimizer.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=config.optimizer.lr,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        fused=True if config.offload_optimizer else None,  # for the step on the host, several times as fast
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
