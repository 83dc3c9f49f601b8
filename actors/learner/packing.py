"""How a recipe's learners will pack samples, as far as it is known before there are any."""

from dataclasses import replace

from actors.learner.config import VARLEN, LearnerConfig, ModelConfig
from actors.learner.sizes import configuration_of, local_folder
from coa.errors import UserError
from coa.learning.packing import ONE_SAMPLE, PackingConfig
from coa.pretrained.reading import reading


def packing_of(model: ModelConfig, learner: LearnerConfig) -> PackingConfig:
    """How learners will pack samples (`PackedPolicy.packing`), as far as the model is known here; as they are told to
    if it can't be trained, which the checks of a recipe's models say."""
    if model.attention in VARLEN:
        return replace(learner.packing, share_prefixes=False)
    folder = local_folder(model.path) if model.path is not None else None
    if folder is None:
        return learner.packing
    from actors.learner.policy import parity_of

    try:
        with reading(f"{model.path}: its configuration"):
            configuration = configuration_of(folder)
        copied = parity_of(configuration, model.attention)
    except UserError:
        copied = None
    return learner.packing if copied is None or copied.way.packed else ONE_SAMPLE
