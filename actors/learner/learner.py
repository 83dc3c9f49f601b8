"""One rank of the learner: DeepSpeed around a `TrainedPolicy`.

samples -> updates (whole groups) -> micro-batches -> scores -> totals -> the algorithm's loss -> backward -> step

The algorithm (`coa.learning.algorithms`) defines the loss and the scores that it needs.
"""

import itertools
import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import timedelta
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from actors.learner.config import LearnerConfig, ModelConfig, Objective, RlLearnerConfig
from actors.learner.deepspeed_settings import deepspeed_config
from actors.learner.finite import wrong_in
from actors.learner.lora import add_adapters
from actors.learner.model.head import head_of
from actors.learner.model.load import attention_in, load_model
from actors.learner.model.names import written_sources
from actors.learner.model.parity import settle
from actors.learner.policy import Outputs, TrainedPolicy, check_trained, to_tensors
from actors.learner.scoring import Forward, Passes, ScoredBatch, Unadapted, bounds_of, filler, load_reference
from actors.learner.sequence.groups import sequence_group
from actors.learner.step_report import StepReport, Sums
from actors.learner.zero import choose_accelerator, gather, join_process_group, sharded_loading
from actors.weights.parts import ModelParts
from actors.weights.ranks import from_first, write_whole
from coa.json_object import Json
from coa.learning.algorithms import loss_of, make, reduced
from coa.learning.algorithms.base import TOKENS, Totals, own_totals, standard_totals, token_batch
from coa.learning.dealing import updates_of
from coa.learning.packing import MicroBatch, PackingConfig, micro_batch, pack
from coa.learning.schedule import learning_rate
from coa.storage.files import replacing_folder
from coa.types import Floats, Sample

if TYPE_CHECKING:
    import transformers

    from actors.learner.checkpoint import Snapshot


VALUE_HEAD = "value_head"
"""Key that marks the optimizer's parameter group with the value head's learning rate."""
CHECKPOINTING = {"use_reentrant": False, "preserve_rng_state": False}
"""Arguments of gradient checkpointing; no RNG state, since models are trained without dropout."""


class Learner:
    """Built on every rank after the process group is up; the methods are collective unless said otherwise."""

    def __init__(
        self,
        model_dir: Path,
        model: ModelConfig,
        config: LearnerConfig,
        *,
        steps: int,
        objective: Objective | None = None,
    ) -> None:
        choose_accelerator()
        import deepspeed  # takes seconds to import

        join_process_group()
        if config.threads:
            torch.set_num_threads(config.threads)
        self.config = config = RlLearnerConfig.of(config)
        self._steps = steps
        objective = objective or Objective()
        self.algorithm = make(objective.algorithm, config.loss, objective.settings)
        needs, temperature = self.algorithm.needs, objective.temperature
        settings = deepspeed_config(config, model.dtype, gpu=dist.get_backend() != "gloo")
        sequence = sequence_group(config.sequence_parallel, timedelta(seconds=config.collective_s))
        hf_model = prepared(model_dir, model, config, settings)
        self.policy = TrainedPolicy(
            hf_model,
            logits_bytes=config.logits_bytes,
            temperature=temperature,
            values=needs.values,
            sequence=sequence,
        )
        head = head_of(hf_model)
        # ZeRO-3 must gather the head's adapter modules together with the head, which calls them once per chunk.
        deepspeed.utils.set_z3_leaf_module(head, any(True for _ in head.children()))
        self.policy.train()
        self._optimizer = make_optimizer(self.policy, config)
        self.engine: Any
        self.engine, _, _, _ = deepspeed.initialize(model=self.policy, optimizer=self._optimizer, config=settings)
        self.device: torch.device = self.engine.device
        self.parity = settle(self.policy, self.engine, lambda apart: max(gather(apart)))
        """How training computes, and how near to the model's own pass."""
        reference: Forward | None = None
        if needs.reference and config.lora.rank:
            reference = Unadapted(self.engine)
        elif needs.reference:
            reference = load_reference(
                model_dir,
                model,
                settings,
                self.device,
                temperature=temperature,
                logits_bytes=config.logits_bytes,
                sequence=sequence,
                way=self.policy.way,
            )
        self._passes = Passes(self.engine, reference, needs, self.device)

    def step(self, samples: Sequence[Sample], version: int) -> StepReport:
        """Trains the policy of `version` on this rank's samples of a batch. Ranks may hold different numbers of
        samples; ranks that share rows hold the same samples."""
        updates = [self._pack(share) for share in self._shares(samples)]
        ranks = gather(([len(batches) for batches in updates], *bounds_of(samples)))
        lengths, lows, highs = zip(*ranks, strict=True)
        most = [max(column) for column in zip(*lengths, strict=True)]
        several, bounds = len(updates) > 1, (min(lows), max(highs))
        scored = [
            self._passes.score(batches, version=version, most=longest, proximal=several, bounds=bounds)
            for batches, longest in zip(updates, most, strict=True)
        ]
        rate = learning_rate(version, self._steps, self.config.optimizer)
        head_rate = learning_rate(version, self._steps, self.config.value_head.of(self.config.optimizer))
        for group in self._optimizer.param_groups:
            group["lr"] = head_rate if group.get(VALUE_HEAD) else rate
        whole = self._gathered([own_totals(self.algorithm, one.targets) for batches in scored for one in batches])
        sums = Sums(version, samples=len(samples), totals=whole)
        for batches, longest in zip(scored, most, strict=True):
            self._update(batches, longest, whole, sums)
        return sums.report(rate, alike=self.config.sequence_parallel)

    def _shares(self, samples: Sequence[Sample]) -> list[list[Sample]]:
        """This rank's samples for each update."""
        if (updates := self.config.updates_per_batch) == 1:
            return [list(samples)]
        alike = self.config.sequence_parallel
        groups = gather([sample.group for sample in samples], alike=alike)
        return [[samples[i] for i in share] for share in updates_of(groups, updates, dist.get_rank() // alike)]

    @property
    def packing(self) -> PackingConfig:
        """How samples are packed into rows."""
        return self.policy.packing(self.config.packing)

    def _pack(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        return pack(samples, self.packing) if samples else []

    def _update(self, batches: Sequence[ScoredBatch], most: int, whole: Totals, sums: Sums) -> None:
        """One step of the optimizer. `most`: maximum number of micro-batches of any rank. `whole`: the algorithm's
        totals over the batch of all updates."""
        denominators = self._gathered([standard_totals(one.targets) for one in batches])
        if not denominators.get(TOKENS):
            return
        sums.totals = added([sums.totals, denominators])
        totals = {**denominators, **whole}
        for batch in itertools.islice(itertools.chain(batches, itertools.repeat(None)), most):
            if batch is None:  # another rank has more micro-batches: take part in its collectives with a loss of zero
                outputs: Outputs = self.engine(**to_tensors(filler(), self.device))
                self.engine.backward(0.0 * (outputs.logprobs.sum() + outputs.values.sum()))
            else:
                self._train(batch, totals, sums)
        self.engine.step()  # skipped, on all ranks, if the gradient of any is not finite
        grad_norm = float(self.engine.get_global_grad_norm() or 0.0)
        sums.end(applied=self.engine.was_step_applied(), grad_norm=grad_norm)

    def _gathered(self, totals: Sequence[Totals]) -> Totals:
        """The sums of this rank's micro-batches over all ranks."""
        return added(gather(added(totals), alike=self.config.sequence_parallel))

    def _train(self, batch: ScoredBatch, totals: Totals, sums: Sums) -> None:
        outputs: Outputs = self.engine(**to_tensors(batch.rows, self.device), entropy=self.config.entropy)
        proximal = outputs.logprobs.detach() if batch.proximal is None else batch.proximal
        tokens = token_batch(
            batch.targets, logprobs=outputs.logprobs, proximal_logprobs=proximal, values=outputs.values
        )
        losses = loss_of(self.algorithm, tokens, totals)
        loss = reduced(losses.terms, totals)
        if self.algorithm.needs.values:
            # If the loss does not use the values, the head still gets a zero gradient, as with a filler: all ranks must
            # reduce the same gradients.
            loss = loss + 0.0 * outputs.values.sum()
        if not isfinite(loss.item()):
            # Clipping has no gradient at NaN: such tokens would be left out, and the others learnt.
            loss = loss + nan * outputs.logprobs.sum()
        # DeepSpeed averages gradients over all ranks, but the loss is a sum. Ranks that share rows hold parts of one
        # gradient, so the same factor holds for them.
        self.engine.backward(loss * dist.get_world_size())
        sums.add(batch, outputs, proximal, loss, totals)
        sums.measure(losses)
        sums.wrong += wrong_in(tokens, totals, losses)

    def logprobs(self, samples: Sequence[Sample], *, temperature: float = 1.0) -> list[Floats]:
        """For each sample, float32 log-probs of its trained tokens, in order, at `temperature`; 1 is the unscaled
        model."""
        with torch.no_grad():
            batches = [to_tensors(micro_batch([[sample]]), self.device) for sample in samples]
            return [self.engine(**batch, temperature=temperature).logprobs.cpu().numpy() for batch in batches]

    def parts(self, bucket_bytes: int = 64 * 2**20) -> ModelParts:
        """This rank's part of all weights by their Hugging Face names, adapters merged."""
        named = written_sources(self.policy.model)
        return ModelParts(named, sharded=self.config.zero_stage == 3, bucket_bytes=bucket_bytes)

    def rest(self) -> None:
        """Frees the GPU memory that PyTorch caches between steps; not collective."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def save_model(self, folder: Path, beside: Path | None = None) -> None:
        """Hugging Face layout, whose weights every rank writes its part of: all see the folder. Appears whole or not
        at all. beside: a folder whose files are copied into it."""
        first = dist.get_rank() == 0
        with replacing_folder(folder) if first else nullcontext(folder) as part:
            part = from_first(part)
            if first:
                for file in beside.iterdir() if beside is not None else ():
                    shutil.copy(file, part)
                self.policy.model.config.save_pretrained(part)
                self.policy.model.generation_config.save_pretrained(part)
            write_whole(part / "model.safetensors", self.parts())

    def snapshot(self) -> "Snapshot":
        """A copy of this rank's part of the state for `restore`, without frozen weights."""
        from actors.learner.checkpoint import snapshot

        return snapshot(self.engine, exclude_frozen=self.config.lora.rank > 0)

    def restore(self, folder: Path) -> None:
        from actors.learner.checkpoint import TAG

        frozen = self.config.lora.rank > 0
        self.engine.load_checkpoint(str(folder), tag=TAG, load_module_strict=not frozen)


def prepared(
    model_dir: Path, model: ModelConfig, config: LearnerConfig, settings: Json
) -> "transformers.PreTrainedModel":
    """The model that is trained, with its adapters, sharded if DeepSpeed's `settings` say so. Raises UserError."""
    with sharded_loading(settings, model_dir):
        hf_model = load_model(model_dir, model)
    copied = check_trained(hf_model.config, attention_in(hf_model.config), config.lora)
    if config.lora.rank:
        add_adapters(hf_model, config.lora, copied.unused if copied else ())
    if config.gradient_checkpointing:
        hf_model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=CHECKPOINTING)
    return hf_model


def make_optimizer(policy: TrainedPolicy, config: LearnerConfig) -> torch.optim.Optimizer:
    """AdamW over the trained parameters; weight decay only on the policy's matrices."""
    head = [] if policy.value_head is None else list(policy.value_head.parameters())
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    groups: list[dict[str, object]] = [
        {"params": [p for p in trained if _dimensions(p) >= 2], "weight_decay": config.optimizer.weight_decay},
        {"params": [p for p in trained if _dimensions(p) < 2], "weight_decay": 0.0},
    ]
    if head:
        groups.append({"params": head, "weight_decay": 0.0, VALUE_HEAD: True})
    return torch.optim.AdamW(
        groups,
        lr=config.optimizer.lr,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        # Several times as fast on the host, and without the other implementations' temporaries, as large as the
        # parameters.
        fused=True,
    )


def _dimensions(parameter: torch.nn.Parameter) -> int:
    """Number of dimensions of the whole parameter; once ZeRO-3 has sharded it, its own shape is [0]."""
    return len(getattr(parameter, "ds_shape", parameter.shape))


def added(parts: Sequence[Totals]) -> Totals:
    """Sums by name; names in order of their first part."""
    return {name: sum(part.get(name, 0.0) for part in parts) for name in {name: 0 for part in parts for name in part}}
