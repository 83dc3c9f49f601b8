"""A teacher that says how likely it finds what the policy said. It generates nothing.

It computes log-probs as the learner does, not as an engine: packed rows, and never all logits at once, which the
prompt log-probs of an engine would be.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.learner.config import ModelConfig
from actors.learner.policy import PackedPolicy, load_model, to_tensors
from coa.errors import UserError
from coa.learning.algorithms.on_policy import OnPolicyConfig, gaps, toward_teacher
from coa.learning.packing import fill_rows, micro_batch
from coa.types import Floats, Sample


class TeacherScorer:
    """A plain class; on Ray an actor. The teacher has to fit on one device."""

    def __init__(
        self, teacher: Path | str, model: ModelConfig, config: OnPolicyConfig, *, row_tokens: int, threads: int
    ) -> None:
        """model: tells dtype and attention. row_tokens: of samples that are scored together."""
        if threads:
            torch.set_num_threads(threads)
        self._config, self._row_tokens = config, row_tokens
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._mistake = ""
        self._policy: Any = None
        try:
            self._policy = PackedPolicy(load_model(teacher, model)).to(self._device).eval()
        except UserError as error:  # raised from an actor's constructor it would reach nobody as what it is
            self._mistake = str(error)

    def mistake(self) -> str:
        """What a person did wrong, so that there is no teacher; empty if nothing."""
        return self._mistake

    def weigh(self, samples: Sequence[Sample]) -> tuple[float, tuple[Sample, ...]]:
        """The mean reverse KL over all tokens of the policy, in nats, and the samples with their new weights."""
        scored = list(zip(samples, self.logprobs(samples), strict=True))
        found = np.concatenate([np.zeros(0), *(gaps(sample, logprobs) for sample, logprobs in scored)])
        weighed = tuple(toward_teacher(sample, logprobs, self._config) for sample, logprobs in scored)
        return -float(found.mean()) if len(found) else 0.0, weighed

    def logprobs(self, samples: Sequence[Sample]) -> list[Floats]:
        """For each sample, float32 log-probs of its trained tokens, in order."""
        found: dict[int, Floats] = {}
        with torch.no_grad():
            for row in fill_rows([len(sample) for sample in samples], self._row_tokens):
                packed = micro_batch([[samples[i] for i in row]])
                flat = self._policy(**to_tensors(packed, self._device)).cpu().numpy()
                ends = np.cumsum([int(samples[i].loss_mask.sum()) for i in row])
                found |= dict(zip(row, np.split(flat, ends[:-1]), strict=True))
        return [found[i] for i in range(len(samples))]
