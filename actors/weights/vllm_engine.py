"""Weight updates inside vLLM; imported in vLLM's processes only.

    coa_receive   begins to receive a version and to check its bytes, in a thread: requests continue
    coa_received  outcome of coa_receive
    start_weight_update, update_weights, finish_weight_update    vLLM's own: requests are paused
    coa_report    the worker's version, the tensors that it took, and the layers that lack elements

Workers answer with plain data, errors included, since vLLM turns its workers' exceptions into text.
"""

import logging
import pickle
import threading
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.config import VllmConfig, WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from actors.weights.checks.load_watch import LoadWatch
from actors.weights.manifest import TensorSpan
from actors.weights.parts import DTYPES
from actors.weights.transport import ReceiveOrder
from actors.weights.transports import find_receiver
from coa.errors import InfrastructureError, SyncError
from coa.json_object import Json

TYPES = {name: dtype for dtype, name in DTYPES.items()}


@dataclass
class InitInfo(WeightTransferInitInfo):
    pass


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    sync: int
    """Number of this load in the engine; the workers report it back after the load."""
    perturbed: list[str] = field(default_factory=list)
    """Tensors that are loaded with changed values, to check whether the output follows."""
    kept: list[int] = field(default_factory=list)
    """Rows of these tensors that keep their values."""
    only: list[str] | None = None
    """If set, only these tensors are loaded, and layers without any of them keep their values."""


class Receiving:
    """A version that a thread receives into this process."""

    def __init__(self, order: ReceiveOrder, worker: int) -> None:
        self.order = order
        self.data: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.failure: tuple[str, str] | None = None
        """Type and text of what went wrong."""
        self._open = ExitStack()
        self._thread = threading.Thread(target=self._run, args=(worker,), name="weights", daemon=True)
        self._thread.start()

    def _run(self, worker: int) -> None:
        order = self.order
        try:
            receiver = find_receiver(order.transport)
            self.data = self._open.enter_context(receiver.receive(order.manifest, order.prepared, worker))
            order.manifest.check(self.data)
        except (InfrastructureError, OSError) as error:
            self.failure = (type(error).__name__, str(error))
        except BaseException as error:
            self.failure = (SyncError.__name__, f"{type(error).__name__}: {error}")
            raise

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def close(self) -> None:
        self.data = np.empty(0, np.uint8)
        self._open.close()

    def tensors(self) -> Iterator[tuple[TensorSpan, torch.Tensor]]:
        """Views of the received bytes."""
        for span in self.order.manifest.layout.tensors:
            flat = torch.from_numpy(self.data[span.start : span.stop])
            yield span, flat.view(TYPES[span.dtype]).view(span.shape)


class ManifestEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._receiving: Receiving | None = None
        self._watch: LoadWatch | None = None
        self._info = UpdateInfo(sync=-1)
        self._report: Json = {"version": -1, "sync": -1, "took": {}, "short": []}

    # --- before the pause ---------------------------------------------------------------------------------------------

    def receive(self, order: bytes) -> None:
        self.drop()
        self._receiving = Receiving(pickle.loads(order), self.parallel_config.rank)

    def received(self) -> Json | None:
        """Outcome of `receive`; None while it is under way."""
        receiving = self._receiving
        if receiving is None or not receiving.done:
            return None
        return {"failure": receiving.failure}

    def report(self) -> Json:
        """Version and number of the last load, the parameter that each published tensor went into, and the layers that
        lack elements."""
        return self._report

    def drop(self) -> None:
        if self._receiving is not None and self._receiving.done:
            self._receiving.close()
        self._receiving = None

    # --- while requests are paused ------------------------------------------------------------------------------------

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Does nothing: each version carries its own address."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: Json) -> None:
        # The inherited method synchronises an accelerator, and there may be none.
        try:
            self._info = self.parse_update_info(update_info)
            self.receive_weights(self._info)
        except BaseException:
            if self._watch is not None:
                self._watch.close()
            # Layers that took nothing get their old tensors back: the model mixes versions, but can be loaded again.
            finalize_layerwise_reload(self.model, self.model_config)
            raise
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        receiving = self._receiving
        if receiving is None or not receiving.done or receiving.failure:
            raise RuntimeError("no weights were received that could be loaded")
        self._watch = LoadWatch(self.model, receiving.order.manifest.layout, receiving.data)
        self._watch.load(self._select(receiving, update_info))

    @staticmethod
    def _select(receiving: Receiving, info: UpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        perturbed, only = set(info.perturbed), None if info.only is None else set(info.only)
        for span, tensor in receiving.tensors():
            if only is None or span.name in only:
                yield span.name, perturb(tensor, info.kept) if span.name in perturbed else tensor

    def finish_weight_update(self) -> None:
        assert self._watch is not None
        assert self._receiving is not None
        order = self._receiving.order
        short = self._watch.short()
        self._watch.close()
        log = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
        before = log.level
        if self._info.only is not None:  # vLLM would warn about each layer that is left as it is
            log.setLevel(logging.ERROR)
        finalize_layerwise_reload(self.model, self.model_config)
        log.setLevel(before)
        if current_platform.is_cpu():
            pack_experts(self.model, self._watch.took.values())
        refresh_shared(self.model)
        self._report = {
            "version": order.manifest.version,
            "sync": self._info.sync,
            "took": self._watch.took,
            "short": short,
        }
        self._watch = None

    def shutdown(self) -> None:
        self.drop()


class WeightWorker:
    """Mixed into vLLM's worker, so that the engine's actor can call it."""

    weight_transfer_engine: ManifestEngine

    def coa_receive(self, order: bytes) -> None:
        self.weight_transfer_engine.receive(order)

    def coa_received(self) -> Json | None:
        return self.weight_transfer_engine.received()

    def coa_report(self) -> Json:
        return self.weight_transfer_engine.report()

    def coa_drop(self) -> None:
        self.weight_transfer_engine.drop()


def pack_experts(model: torch.nn.Module, loaded: Collection[str]) -> None:
    """Packs the weights of experts for a CPU's kernel, which vLLM does at its start, but not where it loads them again.
    loaded: names of the parameters that took something."""
    modules = {name.rpartition(".")[0] for name in loaded}
    for name, module in model.named_modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        if kernel is not None and name in modules:
            kernel.fused_experts.process_weights_after_loading(module)


def refresh_shared(model: torch.nn.Module) -> None:
    """Has layers that share their weight derive anew what they compute with.

    vLLM loads a tied weight into one of its layers, and takes the other for one that got nothing. On a CPU that one,
    the output layer, multiplies with a copy in the order of its kernel."""
    methods = ((layer, getattr(layer, "quant_method", None)) for layer in model.modules())
    layers = [(layer, method) for layer, method in methods if isinstance(method, UnquantizedEmbeddingMethod)]
    users = Counter(id(layer.weight) for layer, _ in layers)
    for layer, method in layers:
        if users[id(layer.weight)] > 1:
            method.process_weights_after_loading(layer)


def perturb(tensor: torch.Tensor, kept: Collection[int] = ()) -> torch.Tensor:
    """Changed values of the same magnitude, in a pattern that a later normalisation does not cancel, as it would a
    scale or a shift. kept: rows that stay as they are."""
    values = tensor.float().reshape(-1).clone()
    values[::2] *= 2.0
    values[1::3] += 0.05
    changed = values.reshape(tensor.shape).to(tensor.dtype)
    if rows := list(kept):
        changed[rows] = tensor[rows]
    return changed
