"""Publishing from ranks in plain processes: what they write together is the learner's model, and what it costs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from actors.learner.lora import Source
from actors.weights.on_disk import mapped
from actors.weights.parts import ModelParts, merge
from coa.learning.weights import read_layout
from tests.support.tiny import make_model
from tests.support.weights import run_ranks

PUBLISH = """
import numpy as np
import deepspeed
from actors.learner.config import LearnerConfig
from actors.learner.learner import Learner
from actors.learner.config import LoraConfig
from actors.learner.lora import sources
from actors.learner.config import ModelConfig
from actors.weights.ranks import Ranks
from actors.weights.transports import find_sender
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig
from tests.support.tiny import random_sample
from tests.support.weights import FolderShelf
from safetensors.torch import save_file

settings = json.loads((folder / "settings.json").read_text())
lora = LoraConfig(rank=settings["lora"], targets=("q_proj", "up_proj"))
config = LearnerConfig(zero_stage=settings["stage"], lora=lora, optimizer=OptimizerConfig(lr=1e-3), threads=1)
learner = Learner(folder / "model", ModelConfig(dtype=settings["dtype"]), config, steps=2)
rng = np.random.default_rng(rank)
learner.step([random_sample(rng, 300) for _ in range(3)], 0)
ranks = Ranks(settings["nodes"][rank])
sender = find_sender("host")(ranks, FolderShelf(str(folder)))
parts = learner.parts(settings["bucket"])
published = sender.send(parts, 1, "1-0")
state = {}
for source in sources(learner.policy.model):
    with deepspeed.zero.GatheredParameters(list(source.parameters), enabled=settings["stage"] == 3):
        weight, *adapter = (p.detach().float() for p in source.parameters)
        change = source.scale * (adapter[1] @ adapter[0]) if adapter else 0
        state[source.name] = (weight + change).to(source.parameters[0].dtype).clone()
if rank == 0:
    save_file(state, folder / "expected.safetensors")
    manifest = published.manifest
    learner_digests = [d.hex() for d in manifest.digests]
learner.save_model(folder / "saved")
pathlib.Path(folder, f"{rank}.json").write_text(json.dumps(learner_digests if rank == 0 else None))
"""

ONE, TWO = ["a", "a"], ["a", "b"]


@pytest.mark.parametrize(
    ("stage", "lora", "dtype", "nodes", "bucket"),
    [
        pytest.param(1, 0, "float32", ONE, 10_000, id="stage 1"),
        pytest.param(3, 0, "float32", TWO, 10_000, id="stage 3, a rank on another node"),
        pytest.param(3, 4, "bfloat16", ONE, 1_000, id="stage 3, adapters"),
        pytest.param(2, 4, "float32", TWO, 1 << 20, id="stage 2, adapters, two nodes", marks=pytest.mark.slow),
        pytest.param(3, 4, "float32", TWO, 50_000, id="stage 3, adapters, two nodes", marks=pytest.mark.slow),
        pytest.param(2, 0, "bfloat16", ONE, 1_001, id="stage 2", marks=pytest.mark.slow),
    ],
)
def test_what_two_ranks_publish_is_their_model_tensor_by_tensor(
    stage: int, lora: int, dtype: str, nodes: list[str], bucket: int, tmp_path: Path
) -> None:
    make_model(tmp_path / "model")
    settings = {"stage": stage, "lora": lora, "dtype": dtype, "nodes": nodes, "bucket": bucket}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    digests, _ = run_ranks(PUBLISH, 2, tmp_path)
    expected = load_file(tmp_path / "expected.safetensors")
    published = load_file((tmp_path / "1-0.kept").read_text())
    saved = load_file(tmp_path / "saved" / "model.safetensors")
    assert published.keys() == expected.keys() == saved.keys()
    for name, tensor in expected.items():
        if lora and ("q_proj" in name or "up_proj" in name):  # products of parts of a matrix round otherwise
            torch.testing.assert_close(published[name], tensor, rtol=1e-6 if dtype == "float32" else 0.01, atol=1e-8)
        else:
            assert torch.equal(published[name], tensor), name
        assert torch.equal(saved[name].view(torch.uint8), published[name].view(torch.uint8)), name
    layout, _ = read_layout(Path((tmp_path / "1-0.kept").read_text()), bucket)
    assert len(digests) == layout.buckets
    assert "lm_head.weight" in layout.names
    assert "model.embed_tokens.weight" in layout.names


def flat(parts: ModelParts, writers: int) -> np.ndarray:
    data = np.zeros(parts.layout.nbytes, np.uint8)
    for writer in range(writers):
        for offset, piece in parts.pieces(writer, writers):
            assert len(piece) <= parts.layout.bucket_bytes or parts.layout.bucket_bytes < 16
            assert not data[offset : offset + len(piece)].any(), "written twice"
            data[offset : offset + len(piece)] = piece
    return data


@given(st.integers(1, 5), st.integers(16, 300), st.lists(st.tuples(st.integers(1, 7), st.integers(1, 7)), min_size=1))
def test_any_number_of_writers_and_any_bucket_give_every_byte_once(writers: int, bucket: int, shapes: Any) -> None:
    tensors = [torch.rand(shape) + 1 for shape in shapes]
    sources = [Source(f"t{i}", (torch.nn.Parameter(tensor),)) for i, tensor in enumerate(tensors)]
    parts = ModelParts(sources, sharded=False, bucket_bytes=bucket)
    expected = np.concatenate([tensor.numpy().reshape(-1).view(np.uint8) for tensor in tensors])
    whole = flat(parts, writers)
    # Elements are above 1, and their highest byte is never 0: what was left out would show.
    assert np.array_equal(whole, expected)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 80), st.integers(1, 30))
def test_an_adapter_is_folded_into_any_run_of_elements(rows: int, columns: int, at: int, length: int) -> None:
    generator = torch.Generator().manual_seed(rows * 100 + columns)
    weight, a, b = (torch.randn(shape, generator=generator) for shape in ((rows, columns), (2, columns), (rows, 2)))
    whole = (weight + 0.5 * (b @ a)).reshape(-1)
    at = min(at, whole.numel() - 1)
    piece = weight.reshape(-1)[at : at + length]
    torch.testing.assert_close(merge(piece, a, b, 0.5, at), whole[at : at + length])


def test_a_mapped_file_ends_where_its_layout_says(tmp_path: Path) -> None:
    from coa.errors import IncompleteWeights

    (tmp_path / "file").write_bytes(b"12345")
    with mapped(tmp_path / "file", 2, 3) as data:
        assert bytes(data) == b"345"
    with pytest.raises(IncompleteWeights, match="has 5 bytes, not 6"), mapped(tmp_path / "file", 2, 4):
        pass
