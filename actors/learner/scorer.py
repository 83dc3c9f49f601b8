"""A teacher that computes log-probs of the policy's tokens. It generates nothing.

It computes them like the learner, in packed rows and without all logits in memory at once, unlike an engine's prompt
log-probs.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from actors.learner.config import ModelConfig
from actors.learner.model.load import load_model
from actors.learner.model.parity import settle
from actors.learner.policy import PackedPolicy, to_tensors
from coa.errors import UserError
from coa.learning.algorithms.on_policy import OnPolicyConfig, gaps, toward_teacher
from coa.learning.packing import PackingConfig, pack
from coa.types import Floats, Sample


class TeacherScorer:
    """Scores samples with a teacher that fits on one device. A plain class; on Ray an actor."""

    def __init__(
        self,
        teacher: Path | str,
        model: ModelConfig,
        config: OnPolicyConfig,
        *,
        row_tokens: int,
        threads: int,
        gpu: bool = False,
    ) -> None:
        """model: dtype and attention. row_tokens: maximum tokens of the samples that are scored together. gpu: whether
        it has a GPU. Ray does not hide the GPUs of others from a process without one."""
        if threads:
            torch.set_num_threads(threads)
        self._config, self._row_tokens = config, row_tokens
        self._device = torch.device("cuda" if gpu else "cpu")
        self._computing = asyncio.Lock()
        self._mistake = ""
        self._policy: PackedPolicy
        try:
            self._policy = PackedPolicy(load_model(teacher, model)).to(self._device).eval()
            settle(self._policy, self._policy)
        except UserError as error:  # Ray would wrap it if it were raised in an actor's constructor
            self._mistake = str(error)

    def mistake(self) -> str:
        """The user error that prevented loading the teacher; empty if there was none."""
        return self._mistake

    async def weigh(self, samples: Sequence[Sample]) -> tuple[float, tuple[Sample, ...]]:
        """The mean reverse KL over all tokens of the policy, in nats, and the samples with their new weights. Raises
        NotFinite if the teacher gives no number for a token. One call computes at a time, in a thread, so that the
        actor answers other calls meanwhile."""
        async with self._computing:
            return await asyncio.to_thread(self._weigh, samples)

    def _weigh(self, samples: Sequence[Sample]) -> tuple[float, tuple[Sample, ...]]:
        scored, limit = list(zip(samples, self.logprobs(samples), strict=True)), self._config.limit
        found = np.concatenate([np.zeros(0), *(gaps(sample, logprobs, limit) for sample, logprobs in scored)])
        weighed = tuple(toward_teacher(sample, logprobs, self._config) for sample, logprobs in scored)
        return -float(found.mean()) if len(found) else 0.0, weighed

    def logprobs(self, samples: Sequence[Sample]) -> list[Floats]:
        """For each sample, float32 log-probs of its trained tokens, in order."""
        found: dict[int, Floats] = {}
        packing = self._policy.packing(PackingConfig(row_tokens=self._row_tokens))
        with torch.no_grad():
            for batch in pack(samples, packing):
                flat = self._policy(**to_tensors(batch, self._device)).cpu().numpy()
                ends = np.cumsum(np.bincount(batch.segments, minlength=len(batch.members)))
                found |= dict(zip(batch.members, np.split(flat, ends[:-1]), strict=True))
        return [found[i] for i in range(len(samples))]
