"""Models of vLLM whose own code copies into their parameters are loaded anew whole."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import record_metadata_for_reloading

from actors.weights.checks.load_watch import LoadWatch
from actors.weights.manifest import Layout, TensorSpan


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w13, self.w2, self.sinks, self.norm = (nn.Parameter(torch.zeros(size)) for size in (4, 3, 2, 1))
        for parameter in self.parameters():
            parameter.requires_grad_(False)
        parameter: Any = self.w13
        parameter.weight_loader = self.load_one

    def load_one(self, param: nn.Parameter, value: torch.Tensor, expert: int) -> None:
        raise AssertionError("not for all experts at once")


class CopyingModel(nn.Module):
    """Copies the tensors of its experts by itself, one through `data`, and loads one as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = Experts()

    def load_weights(self, weights: Any) -> None:
        for name, value in weights:
            parameter: Any = self.experts.get_parameter(name)
            if name == "norm":
                parameter.weight_loader(parameter, value)
            elif name == "sinks":
                parameter.data.copy_(value)
            else:
                parameter.copy_(value)


@pytest.mark.parametrize("missing", [None, "w2"])
def test_what_a_model_copies_by_itself_is_loaded_and_counted(missing: str | None) -> None:
    model = CopyingModel()
    kept = dict(model.experts.named_parameters())
    data = torch.arange(1.0, 11.0)
    values = dict(zip(kept, data.split([4, 3, 2, 1]), strict=True))
    spans = [
        TensorSpan(
            name, "F32", tuple(one.shape), 4 * int(one.storage_offset()), 4 * int(one.storage_offset() + len(one))
        )
        for name, one in values.items()
    ]
    record_metadata_for_reloading(model)
    initialize_layerwise_reload(model)
    watch = LoadWatch(model, Layout(tuple(spans), bucket_bytes=1024), data.view(torch.uint8).numpy())
    watch.load((name, one) for name, one in values.items() if name != missing)
    short = watch.short()
    watch.close()
    finalize_layerwise_reload(model, SimpleNamespace(dtype=torch.float32))
    assert watch.took == {name: f"experts.{name}" for name in values if name != missing}
    assert short == ([] if missing is None else ["experts (7 of 10 elements)"])
    for name, parameter in model.experts.named_parameters():
        assert parameter is kept[name]
        if missing is None:
            assert parameter.equal(values[name])
