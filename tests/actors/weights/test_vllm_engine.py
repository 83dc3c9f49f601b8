"""What is done to a model of vLLM after an update, so that it computes with its new weights."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader.reload.layerwise import record_metadata_for_reloading
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from actors.weights import vllm_engine
from actors.weights.on_disk import published_file
from actors.weights.transport import ReceiveOrder
from actors.weights.vllm_engine import ManifestEngine
from tests.support.patience import soon

BIAS = "gate.e_score_correction_bias"
"""Of a router: vLLM gives it no loader of its own, and leaves it in its place."""


def parameter(*sizes: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(sizes), requires_grad=False)


class Copying(UnquantizedEmbeddingMethod):
    """Derives what its layer computes with, as on a CPU."""

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.derived = layer.weight.detach().clone()


class Embedding(nn.Module):
    derived: Tensor

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight
        self.quant_method = Copying()


class Packing:
    """The kernel of experts."""

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.packed = layer.w13.detach().clone()


class Experts(nn.Module):
    packed: Tensor | None = None

    def __init__(self) -> None:
        super().__init__()
        self.w13 = parameter(4)
        self.quant_method = SimpleNamespace(moe_kernel=SimpleNamespace(fused_experts=Packing()))


class Model(nn.Module):
    """Embeddings whose weight is the output layer's too, a layer whose weight is its own, experts and a router."""

    def __init__(self) -> None:
        super().__init__()
        weight = parameter(2, 3)
        self.embed, self.head, self.other = Embedding(weight), Embedding(weight), Embedding(parameter(2, 3))
        self.first, self.second = Experts(), Experts()
        self.gate = nn.Module()
        self.gate.e_score_correction_bias = parameter(2)
        for layer in (self.embed, self.head, self.other):
            layer.derived = layer.weight.clone()

    def load_weights(self, weights: Any) -> None:
        for name, value in weights:
            parameter = self.get_parameter(name)
            getattr(parameter, "weight_loader", default_weight_loader)(parameter, value)


VALUES = {
    "embed.weight": torch.arange(6.0).view(2, 3),
    "other.weight": torch.arange(6.0, 12.0).view(2, 3),
    "first.w13": torch.arange(12.0, 16.0),
    "second.w13": torch.arange(16.0, 20.0),
    BIAS: torch.tensor([20.0, 21.0]),
}


class Bench:
    """A worker's side of updates of that model."""

    def __init__(self, folder: Path) -> None:
        self.model = Model()
        record_metadata_for_reloading(self.model)
        nothing: Any = None
        config: Any = SimpleNamespace(
            parallel_config=SimpleNamespace(rank=0), model_config=SimpleNamespace(dtype=torch.float32)
        )
        self.engine = ManifestEngine(nothing, config, torch.device("cpu"), self.model)
        save_file(VALUES, folder / "model.safetensors")
        self._published = published_file(3, folder)

    def update(self, **info: Any) -> dict[str, Any]:
        published, engine = self._published, self.engine
        order = ReceiveOrder(manifest=published.manifest, transport=published.transport, prepared=published.place)
        engine.receive(order.pack())
        assert soon(engine.received) == {"failure": None}
        engine.start_weight_update()
        engine.update_weights({"sync": 1, **info})
        engine.finish_weight_update()
        engine.drop()
        return engine.report()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("cpu", [True, False])
def test_experts_that_took_something_are_packed_again_on_a_cpu(
    cpu: bool, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_engine, "current_platform", SimpleNamespace(is_cpu=lambda: cpu))
    bench.update(only=["second.w13"])
    first, second = bench.model.first, bench.model.second
    assert first.packed is None
    assert second.w13.equal(VALUES["second.w13"])
    if not cpu:
        assert second.packed is None
        return
    assert second.packed is not None
    assert second.packed.equal(VALUES["second.w13"])
    bench.update()
    assert first.packed is not None
    assert first.packed.equal(VALUES["first.w13"])


def test_both_layers_that_share_a_weight_compute_with_the_new_one(bench: Bench) -> None:
    model = bench.model
    shared = model.embed.weight
    assert bench.update()["short"] == []
    assert model.head.weight is model.embed.weight is shared
    for layer in (model.embed, model.head):
        assert layer.weight.equal(VALUES["embed.weight"])
        assert layer.derived.equal(VALUES["embed.weight"])


def test_a_layer_whose_weight_is_its_own_is_left_to_vllm(bench: Bench) -> None:
    kept = bench.model.other.derived
    bench.update(only=["embed.weight"])
    assert bench.model.other.derived is kept


def test_what_has_no_loader_counts_as_loaded_and_has_none_afterwards(bench: Bench) -> None:
    bias = bench.model.get_parameter(BIAS)
    report = bench.update()
    assert report == {"version": 3, "sync": 1, "took": {name: name for name in VALUES}, "short": []}
    assert bench.model.get_parameter(BIAS) is bias
    assert bias.equal(VALUES[BIAS])
    assert not hasattr(bias, "weight_loader")
    assert bench.update() == report


def test_an_update_that_fails_leaves_no_loader_behind(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(weights: Any) -> None:
        raise ValueError("no such tensor")

    with monkeypatch.context() as patch:
        patch.setattr(bench.model, "load_weights", fail)
        with pytest.raises(ValueError, match="no such tensor"):
            bench.update()
    assert not hasattr(bench.model.get_parameter(BIAS), "weight_loader")
    assert bench.update()["took"] == {name: name for name in VALUES}
