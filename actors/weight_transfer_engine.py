"""The vLLM side of the host path; imported in vLLM's processes only."""

from dataclasses import dataclass
from typing import Any

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload


@dataclass
class HostInit(WeightTransferInitInfo):
    pass


@dataclass
class HostUpdate(WeightTransferUpdateInfo):
    path: str
    """A safetensors file with Hugging Face parameter names, on the host of the worker."""


class HostWeightTransferEngine(WeightTransferEngine[HostInit, HostUpdate]):
    init_info_cls = HostInit
    update_info_cls = HostUpdate

    def init_transfer_engine(self, init_info: HostInit) -> None:
        """Nothing to set up: each update names its file."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Not the inherited one: it synchronises an accelerator, and there may be none.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: HostUpdate) -> None:
        from safetensors import safe_open

        with safe_open(update_info.path, framework="pt") as file:
            model: Any = self.model
            model.load_weights((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held between updates."""
