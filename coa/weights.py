"""A model's weights as one array of bytes, in the safetensors format: what travels from learner to engines."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Weights = NDArray[np.uint8]


def serialise(state: "Mapping[str, torch.Tensor]") -> Weights:
    from safetensors.torch import save  # brings torch along

    contiguous = {name: tensor.contiguous().cpu() for name, tensor in state.items()}
    return np.frombuffer(save(contiguous, metadata={"format": "pt"}), np.uint8)
