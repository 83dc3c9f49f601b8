"""Publishing from ranks in plain processes: what they write together is the learner's model, and what it costs."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from actors.learner.lora import Source
from actors.weights.manifest import read_layout
from actors.weights.on_disk import mapped
from actors.weights.parts import ModelParts, merge, rounded
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
from actors.weights.holder import SPARE
from actors.weights.ranks import Ranks
from actors.weights.transports import find_sender
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig
from tests.support.tiny import random_sample
from tests.support.weights import FolderWeightStore
from safetensors.torch import save_file

for name, settings in json.loads((folder / "cases.json").read_text()).items():
    here = folder / name
    here.mkdir(exist_ok=True)
    lora = LoraConfig(rank=settings["lora"], targets=("q_proj", "up_proj"))
    config = LearnerConfig(zero_stage=settings["stage"], lora=lora, optimizer=OptimizerConfig(lr=1e-3), threads=1)
    learner = Learner(folder / "model", ModelConfig(dtype=settings["dtype"]), config, steps=2)
    rng = np.random.default_rng(rank)
    learner.step([random_sample(rng, 300) for _ in range(3)], 0)
    ranks = Ranks(settings["nodes"][rank])
    store = FolderWeightStore(str(here))
    sender = find_sender("host")(ranks, store)
    if ranks.nodes.index(ranks.node) == rank:  # an older version, larger than this one
        pathlib.Path(store.folder(ranks.node), SPARE).write_bytes(bytes([255]) * 10_000_000)
    parts = learner.parts(settings["bucket"])
    published = sender.send(parts, 1, "1-0")
    state = {}
    for source in sources(learner.policy.model):
        with deepspeed.zero.GatheredParameters(list(source.parameters), enabled=settings["stage"] == 3):
            weight, *adapter = (p.detach().float() for p in source.parameters)
            change = source.scale * (adapter[1] @ adapter[0]) if adapter else 0
            state[source.name] = (weight + change).to(source.parameters[0].dtype).clone()
    if rank == 0:
        save_file(state, here / "expected.safetensors")
        digests = [digest.hex() for digest in published.manifest.digests]
        (here / "digests.json").write_text(json.dumps(digests))
    learner.save_model(here / "saved")
pathlib.Path(folder, f"{rank}.json").write_text("null")
"""

ONE, TWO = ["a", "a"], ["a", "b"]


@dataclass(frozen=True, kw_only=True)
class Case:
    stage: int
    lora: int = 0
    """Rank of adapters; 0 for none."""
    dtype: str = "float32"
    nodes: list[str]
    """Of each rank."""
    bucket: int


FAST = {
    "stage 1": Case(stage=1, nodes=ONE, bucket=10_000),
    "stage 3, a rank on another node": Case(stage=3, nodes=TWO, bucket=10_000),
    "stage 3, adapters": Case(stage=3, lora=4, dtype="bfloat16", nodes=ONE, bucket=1_000),
}
SLOW = {
    "stage 2, adapters, two nodes": Case(stage=2, lora=4, nodes=TWO, bucket=1 << 20),
    "stage 3, adapters, two nodes": Case(stage=3, lora=4, nodes=TWO, bucket=50_000),
    "stage 2": Case(stage=2, dtype="bfloat16", nodes=ONE, bucket=1_001),
}


@pytest.fixture(scope="module")
def publish(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a case; all fast cases are played by one pair of processes, and all slow ones by another."""

    @cache
    def play(slow: bool) -> Path:
        folder = tmp_path_factory.mktemp("publish")
        make_model(folder / "model")
        cases = SLOW if slow else FAST
        (folder / "cases.json").write_text(json.dumps({name: asdict(case) for name, case in cases.items()}))
        run_ranks(PUBLISH, 2, folder)
        return folder

    return lambda name: play(name in SLOW) / name


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_what_two_ranks_publish_is_their_model_tensor_by_tensor(publish: Callable[[str], Path], name: str) -> None:
    folder, case = publish(name), {**FAST, **SLOW}[name]
    expected = load_file(folder / "expected.safetensors")
    published = load_file((folder / "1-0.kept").read_text())
    saved = load_file(folder / "saved" / "model.safetensors")
    assert not list(folder.rglob("spare*")), "every node wrote over what it had"
    assert published.keys() == expected.keys() == saved.keys()
    for tensor_name, tensor in expected.items():
        for found in (published[tensor_name], saved[tensor_name]):
            if case.lora and ("q_proj" in tensor_name or "up_proj" in tensor_name):
                # Products of parts of a matrix round otherwise.
                torch.testing.assert_close(found, tensor, rtol=1e-6 if case.dtype == "float32" else 0.01, atol=1e-8)
            else:
                assert torch.equal(found.view(torch.uint8), tensor.view(torch.uint8)), tensor_name
    layout, _ = read_layout(Path((folder / "1-0.kept").read_text()), case.bucket)
    assert len(json.loads((folder / "digests.json").read_text())) == layout.buckets
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


@given(st.integers(1, 3), st.booleans(), st.integers(1, 9), st.integers(1, 9), st.integers(0, 200), st.integers(1, 30))
def test_an_adapter_is_folded_into_any_run_of_elements(
    experts: int, transposed: bool, rows: int, columns: int, at: int, length: int
) -> None:
    """Of one matrix or of those of several experts, [out, in] or [in, out]."""
    generator = torch.Generator().manual_seed(rows * 100 + columns)
    out, into = (columns, rows) if transposed else (rows, columns)
    weight = torch.randn((experts, rows, columns), generator=generator)
    a, b = (torch.randn(shape, generator=generator) for shape in ((experts, 2, into), (experts, out, 2)))
    change = b @ a
    whole = (weight + 0.5 * (change.mT if transposed else change)).reshape(-1)
    at = min(at, whole.numel() - 1)
    piece = weight.reshape(-1)[at : at + length]
    source = Source("experts", (weight,), 0.5, experts, transposed)
    # As peft lays them out: A is expert by expert, and of B's columns each rank has one for every expert.
    found = merge(piece, source, a.reshape(-1, into), b.permute(1, 2, 0).reshape(out, -1), at)
    torch.testing.assert_close(found, whole[at : at + length])


@given(st.integers(0, 3000), st.integers(0, 2**40))
def test_a_rounded_matrix_is_the_same_however_it_is_cut_and_as_it_was_where_nothing_changed(cut: int, at: int) -> None:
    weights = torch.randn(3000, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert torch.equal(rounded(weights.float(), at), weights)
    moved = weights.float() * 1.0003
    whole = rounded(moved, at)
    assert torch.equal(torch.cat([rounded(moved[:cut], at), rounded(moved[cut:], at + cut)]), whole)
    # To one of the two neighbours.
    assert ((whole.float() - moved).abs() <= moved.abs() * 2**-7).all()


@pytest.mark.parametrize("rms", [7e-7, 3e-6, 1e-5, 1e-4])
def test_changes_below_what_bfloat16_tells_apart_arrive_in_the_mean(rms: float) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = (torch.randn(1_000_000, generator=generator) * 0.02).bfloat16().float()
    change = torch.randn(1_000_000, generator=generator) * rms

    def arrived(published: torch.Tensor) -> float:
        return float((published.float() - weights) @ change / (change @ change))

    assert arrived(rounded(weights + change, 5)) == pytest.approx(1.0, abs=0.04)
    nearest = arrived((weights + change).bfloat16())
    assert nearest < 0.3 or rms > 1e-5, "what this is for"


def test_a_mapped_file_ends_where_its_layout_says(tmp_path: Path) -> None:
    from coa.errors import IncompleteWeights

    (tmp_path / "file").write_bytes(b"12345")
    with mapped(tmp_path / "file", 2, 3) as data:
        assert bytes(data) == b"345"
    with pytest.raises(IncompleteWeights, match="has 5 bytes, not 6"), mapped(tmp_path / "file", 2, 4):
        pass
