"""Weights as bytes."""

from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load

from actors.weights.manifest import serialise

torch.set_num_threads(1)


def test_weights_come_back_with_names_types_and_values() -> None:
    state = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.5, -2.0], dtype=torch.bfloat16)}
    data = serialise(state)
    assert data.dtype == np.uint8
    back = load(data.tobytes())
    assert set(back) == {"a.weight", "b"}
    assert all(torch.equal(back[name], tensor) and back[name].dtype == tensor.dtype for name, tensor in state.items())


def test_tensors_laid_out_otherwise_and_views_of_one_buffer_are_written_by_value() -> None:
    flat = torch.arange(10.0)
    state = {"turned": torch.arange(6.0).reshape(2, 3).T, "first": flat[:4].view(2, 2), "second": flat[4:]}
    back = load(serialise(state).tobytes())
    assert back["turned"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert (back["first"].tolist(), back["second"].tolist()) == ([[0, 1], [2, 3]], [4, 5, 6, 7, 8, 9])


def test_parameters_that_need_gradients_are_written_too() -> None:
    assert load(serialise(dict(torch.nn.Linear(2, 1).named_parameters())).tobytes())["weight"].shape == (1, 2)


def test_a_file_of_the_bytes_is_a_model_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(serialise({"a": torch.ones(2)}).tobytes())
    with safe_open(str(path), "pt") as file:
        assert (file.metadata(), list(file.keys())) == ({"format": "pt"}, ["a"])
