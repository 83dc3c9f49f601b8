"""A teacher that scores the policy's own tokens.

samples of a group --> TeacherScoring (rl.on_policy) --> samples weighed token by token
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from actors.handles import Handle, kill, start_restartable
from actors.learner.sizes import hub_name
from cluster.resources import SCORER_CPUS, Role
from cluster.watch import ready, watched_services
from coa.agent.chat_template import date_of
from coa.agent.codec import Codec, read_tokenizer
from coa.distill.dataset.tokens import fingerprint
from coa.errors import NotFinite, UserError
from coa.types import Sample
from jobs.run.run_dir import RunDir


class TeacherScoring:
    def __init__(self, scorer: Handle) -> None:
        self._scorer = scorer

    async def weigh(self, samples: Sequence[Sample]) -> tuple[float, Sequence[Sample]]:
        """Returns the mean reverse KL of a group's samples in nats, and the samples with their new token weights.
        Raises NotFinite if the teacher gives no number for a token."""
        try:
            return await self._scorer.weigh.remote(samples)
        except NotFinite as error:  # Ray wraps it and adds a traceback
            raise NotFinite(str(getattr(error, "cause", error))) from None


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
    # The teacher reads the policy's prompts, so its own date does not count.
    day = date_of(read_tokenizer(run.sft_model).chat_template)
    if fingerprint(Codec.load(teacher, day)) != fingerprint(Codec.load(run.sft_model)):
        raise UserError(f"rl.on_policy.teacher: {teacher} has another tokenizer than the policy")
    resources = {"num_cpus": SCORER_CPUS, "num_gpus": placement.scorer_gpus}
    scorer = start_restartable(
        TeacherScorer,
        {"max_task_retries": -1, **resources, **placement.on(Role.model)},
        teacher,
        run.config.model,
        config.on_policy,
        row_tokens=config.learner.packing.row_tokens,
        threads=config.learner.threads,
        gpu=placement.scorer_gpus > 0,
    )
    try:
        if mistake := await scorer.mistake.remote():
            raise UserError(mistake)
        async with watched_services({"the teacher that scores samples": ready(scorer)}, run.console.say):
            yield TeacherScoring(scorer)
    finally:
        kill(scorer)
