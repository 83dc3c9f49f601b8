"""What is written has the names of the hub's files, whatever transformers calls its tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import MixtralConfig

from actors.learner.config import LoraConfig, ModelConfig, RlLearnerConfig
from actors.learner.learner import Learner
from actors.learner.lora import add_adapters, sources
from actors.learner.model import names
from actors.learner.model.load import load_model
from actors.learner.model.merged import check_written
from actors.learner.model.names import Pieces, pieces_of, written_sources
from actors.learner.model.parity import Copied
from actors.learner.policy import PackedPolicy
from actors.weights.parts import ModelParts
from coa.errors import UserError
from tests.support.families import as_hub, made, tiny_config, written

EXPERTS = "model.layers.0.mlp.experts.gate_up_proj"


def model_of(family: str, folder: Path) -> Any:
    made(tiny_config(family), folder)
    return load_model(folder, ModelConfig(path=str(folder)))


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "granitemoe", "qwen3", "gpt_oss", "hy_v3"])
def test_tensors_are_written_as_transformers_writes_them(family: str, tmp_path: Path) -> None:
    assert as_hub(model_of(family, tmp_path / "model"), tmp_path)


def test_a_matrix_of_all_experts_is_written_as_one_of_each(tmp_path: Path) -> None:
    model = model_of("mixtral", tmp_path)
    pieces = {one.name: one.pieces for one in written_sources(model)}
    shape = (MixtralConfig.from_pretrained(tmp_path).intermediate_size, model.config.hidden_size)
    experts = "model.layers.0.block_sparse_moe.experts"
    assert pieces[EXPERTS] == tuple(
        (f"{experts}.{number}.{name}.weight", shape) for number in range(4) for name in ("w1", "w3")
    )
    assert pieces["model.norm.weight"] == ()
    assert torch.equal(written(model)[f"{experts}.2.w3.weight"], model.get_parameter(EXPERTS)[2, shape[0] :])


def test_adapters_are_merged_into_what_is_written_under_other_names(tmp_path: Path) -> None:
    model = model_of("mixtral", tmp_path)
    plain = written(model)
    add_adapters(model, LoraConfig(rank=2, targets=("w1", "q_proj")))
    for name, parameter in model.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.ones_(parameter)
    found = written(model)
    assert found.keys() == plain.keys()
    changed = {name.split(".")[-2] for name in found if not torch.equal(found[name], plain[name])}
    assert changed == {"w1", "w3", "q_proj"}, "the two are one matrix"


def test_what_would_have_to_be_moved_keeps_its_own_name(tmp_path: Path) -> None:
    model = model_of("hrm_text", tmp_path)
    pieces = {one.name: one.pieces for one in written_sources(model)}
    assert pieces["model.H_module.layers.0.mlp.gate_proj.weight"] == ()
    assert "model.H_module.layers.0.mlp.gate_proj.weight" in written(model)


def test_names_that_would_be_read_as_another_model_are_refused_on_a_tiny_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    def exchanged(model: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Pieces]:
        found = pieces_of(model, shapes)
        return {name: pieces if name != EXPERTS else pieces[::-1] for name, pieces in found.items()}

    copied = Copied.of(tiny_config("mixtral"), "sdpa")
    check_written.__wrapped__(copied, LoraConfig(), frozenset(), PackedPolicy)
    monkeypatch.setattr(names, "pieces_of", exchanged)
    with pytest.raises(
        UserError, match=r"^MixtralForCausalLM can't be trained here: as it is saved it is [\d.]+ nats "
    ):
        check_written.__wrapped__(copied, LoraConfig(), frozenset(), PackedPolicy)


def test_names_that_can_not_be_turned_back_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(model: Any, tensors: Any) -> Any:
        raise KeyError("no way back")

    model = model_of("mixtral", tmp_path)
    monkeypatch.setattr(names, "_reverted", fail)
    with pytest.raises(UserError, match=r"^names of tensors: 'no way back'$"):
        written_sources(model)


@pytest.mark.parametrize("writers", [1, 3])
def test_each_writer_gives_its_share_whatever_the_names_are(writers: int, tmp_path: Path) -> None:
    model = model_of("mixtral", tmp_path)
    plain, named = (
        ModelParts(one, sharded=False, bucket_bytes=1000) for one in (list(sources(model)), written_sources(model))
    )
    assert named.layout.nbytes == plain.layout.nbytes
    assert len(named.layout.tensors) > len(plain.layout.tensors)
    for writer in range(writers):
        pairs = zip(plain.pieces(writer, writers), named.pieces(writer, writers), strict=True)
        assert all(at == other and (one == two).all() for (at, one), (other, two) in pairs)


def test_a_sharded_model_is_written_under_the_same_names(one_rank: None, tmp_path: Path) -> None:
    expected = written(model_of("mixtral", tmp_path / "model"))
    config = RlLearnerConfig(threads=1, zero_stage=3)
    learner = Learner(tmp_path / "model", ModelConfig(path=str(tmp_path / "model")), config, steps=1)
    learner.save_model(tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
