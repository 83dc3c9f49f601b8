"""A teacher that scores the policy's own tokens.

samples of a group --> TeacherScoring (rl.on_policy) --> samples weighed token by token
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ray

from actors.learner.sizes import hub_name
from cluster.resources import Role
from coa.agent.codec import Codec
from coa.distill.dataset.tokens import fingerprint
from coa.errors import UserError
from coa.types import Sample
from jobs.run.run_dir import RunDir


class TeacherScoring:
    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer

    async def weigh(self, samples: Sequence[Sample]) -> tuple[float, Sequence[Sample]]:
        """Returns the mean reverse KL of a group's samples in nats, and the samples with their new token weights."""
        return await self._scorer.weigh.remote(samples)


@asynccontextmanager
async def scoring(run: RunDir) -> AsyncIterator[TeacherScoring | None]:
    """The scorer; None if the recipe names no teacher. Raises UserError for a teacher with another tokenizer."""
    from actors.learner.scorer import TeacherScorer

    config, placement = run.config.rl, run.config.placement
    teacher = config.on_policy.teacher
    if teacher is None:
        yield None
        return
    if not hub_name(teacher):
        teacher = str(Path(teacher).resolve())
    if fingerprint(Codec.load(teacher)) != fingerprint(Codec.load(run.sft_model)):
        raise UserError(f"rl.on_policy.teacher: {teacher} has another tokenizer than the policy")
    scorer: Any = (
        ray.remote(TeacherScorer)
        .options(
            num_cpus=placement.scorer_cpus,
            num_gpus=placement.scorer_gpus,
            max_restarts=-1,
            max_task_retries=-1,
            **placement.on(Role.model),
        )
        .remote(
            teacher,
            run.config.model,
            config.on_policy,
            row_tokens=config.learner.packing.row_tokens,
            threads=config.learner.threads,
            gpu=placement.scorer_gpus > 0,
        )
    )
    try:
        if mistake := await scorer.mistake.remote():
            raise UserError(mistake)
        yield TeacherScoring(scorer)
    finally:
        ray.kill(scorer)
