"""A model's folder that is damaged in any way is refused in one line before its weights are read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from coa.errors import UserError
from coa.pretrained.folder import Pretrained, Use, check_folder
from coa.pretrained.weights import WITH_ADAPTERS
from tests.support.tiny import make_model

WEIGHTS = "model.safetensors"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 538090408\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "whole")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of a whole model."""
    return Path(shutil.copytree(whole, tmp_path / "m"))


def change(folder: Path, name: str = "config.json", **values: Any) -> None:
    """Sets values of a JSON file; None removes one."""
    path = folder / name
    found = (json.loads(path.read_text()) if path.exists() else {}) | values
    path.write_text(json.dumps({key: value for key, value in found.items() if value is not None}))


def rewrite(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def shard(folder: Path) -> list[Path]:
    """Splits the weights into two files with an index; returns the files."""
    tensors = load_file(folder / WEIGHTS)
    (folder / WEIGHTS).unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, of_file in parts.items():
        save_file({name: tensors[name] for name in of_file}, folder / file, metadata={"format": "pt"})
    placed = {name: file for file, of_file in parts.items() for name in of_file}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return [folder / file for file in parts]


def refusal(folder: Path, use: Use = Use.train) -> str:
    """The line that says what is wrong, without the folder's own path."""
    with pytest.raises(UserError) as caught:
        check_folder(folder, use=use)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(str(folder))
    return text.removeprefix(str(folder)).removeprefix(": ")


@pytest.mark.parametrize("use", Use)
def test_a_whole_model_is_taken_for_every_use(whole: Path, use: Use) -> None:
    found = check_folder(whole, use=use)
    assert isinstance(found, Pretrained)
    assert (found.architectures, found.quantization) == (("Qwen3ForCausalLM",), "")


@pytest.mark.parametrize("use", Use)
def test_shards_and_pickled_weights_are_read_too(folder: Path, use: Use) -> None:
    tensors = load_file(folder / WEIGHTS)
    shard(folder)
    check_folder(folder, use=use)
    save_file(tensors, folder / WEIGHTS)
    (folder / "model-00002-of-00002.safetensors").unlink()
    check_folder(folder, use=use)
    (folder / WEIGHTS).unlink()
    (folder / f"{WEIGHTS}.index.json").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    check_folder(folder, use=use)


# --- weights that do not fit ------------------------------------------------------------------------------------------

EMBEDDING = "model.embed_tokens.weight"
UP = "model.layers.1.mlp.up_proj.weight"
ROTARY = ("inv_freq", "cos_cached", "sin_cached")


@pytest.mark.parametrize("use", Use)
def test_a_missing_tensor_is_named_with_its_shape(folder: Path, use: Use) -> None:
    rewrite(folder, lambda tensors: tensors.pop(UP))
    assert refusal(folder, use) == f"its weights do not fit its config.json: 1 tensor is missing: {UP} [256, 64]"
    rewrite(folder, lambda tensors: tensors.pop("model.norm.weight"))
    assert refusal(folder, use).endswith(f": 2 tensors are missing: {UP} [256, 64], model.norm.weight [64]")


@pytest.mark.parametrize("use", Use)
def test_a_tensor_of_another_shape_is_named_with_both(folder: Path, use: Use) -> None:
    rewrite(folder, lambda tensors: tensors.update({UP: torch.zeros(100, 64)}))
    said = refusal(folder, use)
    assert said == (
        f"its weights do not fit its config.json: 1 tensor is of another shape: {UP} [100, 64], not [256, 64]"
    )


def test_a_config_with_fewer_or_more_layers_than_the_weights_is_refused(folder: Path) -> None:
    change(folder, num_hidden_layers=1, layer_types=["full_attention"])
    said = refusal(folder)
    assert said.startswith("its weights do not fit its config.json: 11 tensors are not expected: model.layers.1.")
    assert said.endswith(" and 8 more")
    change(folder, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    assert "11 tensors are missing: model.layers.2." in refusal(folder)


def test_the_names_of_another_program_are_neither_missing_silently_nor_dropped(folder: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[f"net.{name}"] = tensors.pop(name)

    rewrite(folder, rename)
    said = refusal(folder)
    assert "25 tensors are missing: lm_head.weight [" in said
    assert "25 tensors are not expected: net.lm_head.weight [" in said


def test_a_missing_output_layer_is_explained_by_a_tie_and_by_nothing_else(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert "1 tensor is missing: lm_head.weight" in refusal(folder)
    change(folder, tie_word_embeddings=True)
    for use in Use:
        check_folder(folder, use=use)


def test_a_value_head_is_left_out_by_training_and_refused_for_a_server(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({"v_head.summary.weight": torch.zeros(1, 64)}))
    check_folder(folder, use=Use.train)
    check_folder(folder, use=Use.score)
    assert "1 tensor is not expected: v_head.summary.weight [1, 64]" in refusal(folder, Use.serve)


@pytest.mark.parametrize(
    ("kind", "settings", "names"),
    [
        ("gpt2", {"n_embd": 16}, ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias")),
        ("gptj", {"n_embd": 16, "rotary_dim": 4}, ("transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias")),
        (
            "gpt_neo",
            {"hidden_size": 16, "attention_types": [[["global"], 1]]},
            ("transformer.h.0.attn.attention.bias", "transformer.h.0.attn.attention.masked_bias"),
        ),
        ("falcon", {"hidden_size": 16}, ("transformer.h.0.self_attention.rotary.inv_freq",)),
        ("llama", {"hidden_size": 16}, tuple(f"model.layers.0.self_attn.rotary_emb.{one}" for one in ROTARY)),
    ],
)
def test_constants_that_older_versions_stored_are_left_out(
    tmp_path: Path, kind: str, settings: dict[str, Any], names: tuple[str, ...]
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, vocab_size=50, num_attention_heads=2, num_hidden_layers=1, **settings)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    (tmp_path / WEIGHTS).unlink()
    torch.save({**tensors, **{name: torch.ones(1, 1, 8, 8) for name in names}}, tmp_path / "pytorch_model.bin")
    for use in Use:
        check_folder(tmp_path, use=use)
    torch.save({**tensors, "transformer.rotary.inv_freq.more": torch.ones(3)}, tmp_path / "pytorch_model.bin")
    assert "1 tensor is not expected: transformer.rotary.inv_freq.more [3]" in refusal(tmp_path)


def test_the_attention_that_a_configuration_names_need_not_be_installed(folder: Path) -> None:
    change(folder, _attn_implementation="flash_attention_2")
    for use in Use:
        check_folder(folder, use=use)


def test_an_embedding_with_more_rows_than_the_config_says_is_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({EMBEDDING: torch.zeros(5000, 64)}))
    assert f"1 tensor is of another shape: {EMBEDDING} [5000, 64], not [" in refusal(folder)


def test_experts_are_compared_after_they_are_merged(tmp_path: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes: Any = {"num_attention_heads": 4, "num_key_value_heads": 4, "num_local_experts": 2, "num_hidden_layers": 1}
    config = MixtralConfig(vocab_size=50, hidden_size=16, intermediate_size=8, **sizes)
    MixtralForCausalLM(config).save_pretrained(tmp_path)
    check_folder(tmp_path, use=Use.train)
    expert = "model.layers.0.block_sparse_moe.experts.1"
    rewrite(tmp_path, lambda tensors: tensors.pop(f"{expert}.w2.weight"))
    assert "1 tensor is of another shape: model.layers.0.mlp.experts.down_proj [1, 16, 8], not [2," in refusal(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({f"{expert}.w1.weight": torch.zeros(4, 16)}))
    said = refusal(tmp_path)
    assert said.startswith("its tensors can't be made into those of a MixtralForCausalLM (")
    assert "experts.1.w1.weight [4, 16], not [8, 16]" in said


# --- files that are not there or not whole ----------------------------------------------------------------------------


def test_a_folder_without_weights_says_what_is_there_in_their_place(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    nothing = "neither model.safetensors nor model.safetensors.index.json"
    assert refusal(folder) == f"no weights there ({nothing})"
    for name in ("a.pt", "b.pth", "c.h5", "consolidated.safetensors"):
        (folder / name).write_bytes(b"")
    assert refusal(folder) == f"no weights there (it holds a.pt, b.pth, c.h5 and 1 more, and {nothing})"
    (folder / "m.q4.gguf").write_bytes(b"GGUF")
    assert refusal(folder) == (
        "no weights there (m.q4.gguf is GGUF, for llama.cpp: get the model in Hugging Face layout)"
    )


def test_pointers_broken_links_and_cut_files_are_named(folder: Path) -> None:
    weights = folder / WEIGHTS
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    assert refusal(folder).startswith("/model.safetensors: cut short or damaged: ")
    weights.write_bytes(content[:100])
    assert refusal(folder).startswith("/model.safetensors: cut short or damaged: ")
    weights.write_bytes(b"")
    assert refusal(folder).startswith("/model.safetensors: cut short or damaged: ")
    weights.write_text(POINTER)
    assert refusal(folder) == (
        "/model.safetensors: a git-LFS pointer in place of the file: fetch it with `git lfs pull`"
    )
    weights.unlink()
    weights.symlink_to(folder / "blobs" / "4665")
    assert refusal(folder) == "/model.safetensors: a link to a file that is not there"


def test_missing_and_cut_shards_are_named(folder: Path) -> None:
    first, second = shard(folder)
    content = second.read_bytes()
    second.write_bytes(content[:-7])
    assert refusal(folder).startswith("/model-00002-of-00002.safetensors: cut short or damaged: ")
    second.unlink()
    assert refusal(folder) == "1 of the 2 files of its weights are missing: model-00002-of-00002.safetensors"
    index = folder / f"{WEIGHTS}.index.json"
    second.symlink_to(folder / "blobs" / "4665")
    assert refusal(folder) == "/model-00002-of-00002.safetensors: a link to a file that is not there"
    for placed in ("[]", "{}", '{"lm_head.weight": 2}'):
        index.write_text(f'{{"weight_map": {placed}}}')
        assert refusal(folder) == (
            "/model.safetensors.index.json: it has no weight_map that names the files of the weights"
        )
    index.unlink()
    second.unlink()
    assert f"it holds {first.name}, and neither" in refusal(folder)


def test_a_pickle_of_something_else_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    path = folder / "pytorch_model.bin"
    torch.save({"step": 3, "model": {}}, path)
    assert refusal(folder) == "/pytorch_model.bin: step is a int, expected tensors by their names"
    path.write_bytes(path.read_bytes()[:-20])
    assert refusal(folder).startswith("/pytorch_model.bin: cut short or damaged: ")
    torch.save([1], path)
    assert refusal(folder) == "/pytorch_model.bin: a list, expected tensors by their names"


class Program:
    """A value that runs a program when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_no_program_in_a_pickle_is_run(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    torch.save({"lm_head.weight": Program(folder / "mark")}, folder / "pytorch_model.bin")
    assert refusal(folder).startswith("/pytorch_model.bin: cut short or damaged: ")
    assert not (folder / "mark").exists()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{cut", "/config.json: not JSON: "),
        ("[1]", "/config.json: a list, expected an object with keys"),
        (POINTER, "/config.json: a git-LFS pointer in place of the file: fetch it with `git lfs pull`"),
        ("{}", "its config.json has no model_type, such as qwen3 or llama"),
        ('{"model_type": "qwen33"}', "transformers "),
        ('{"model_type": "own", "auto_map": {"AutoConfig": "a.B"}}', "own needs Python code of its own (auto_map), "),
        ('{"model_type": "qwen3", "hidden_size": "many"}', "its config.json describes no model: "),
        ('{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}', "T5ForConditionalGeneration is no c"),
        ('{"model_type": "t5"}', "t5 is no causal language model"),
        ('{"model_type": "bert", "architectures": ["BertForMaskedLM"]}', "BertForMaskedLM is no causal language model"),
        (
            '{"model_type": "qwen3", "architectures": ["Qwen3ForSequenceClassification"]}',
            "Qwen3ForSequenceClassification is no causal language model",
        ),
        ('{"model_type": "qwen2_vl"}', "qwen2_vl takes images or sound too; only models of text alone can be trained"),
    ],
)
def test_a_configuration_that_is_none_or_of_another_kind(folder: Path, content: str, said: str) -> None:
    (folder / "config.json").write_text(content)
    for use in (Use.train, Use.score):
        assert refusal(folder, use).startswith(said)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["Qwen3Model"]},
        {"architectures": None},
        {"model_type": "reformer", "architectures": ["ReformerModelWithLMHead"], "quantization_config": {"a": 1}},
        {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]},
    ],
)
def test_a_model_that_a_server_can_load_is_taken_by_any_name(folder: Path, config: dict[str, Any]) -> None:
    change(folder, **config)
    assert list(check_folder(folder, use=Use.serve).architectures) == (config["architectures"] or [])


def test_an_unknown_kind_is_shown_with_the_nearest(folder: Path) -> None:
    change(folder, model_type="qwen33")
    assert refusal(folder).endswith(" knows no model_type 'qwen33'; the nearest that it knows is qwen3")


def test_adapters_beside_a_whole_model_are_not_what_its_weights_are_for(folder: Path) -> None:
    change(folder, "adapter_config.json", base_model_name_or_path="Qwen/Qwen3-8B")
    assert refusal(folder) == WITH_ADAPTERS


def test_files_and_folders_of_other_layouts_say_what_they_are(folder: Path) -> None:
    (folder / "config.json").unlink()
    assert refusal(folder) == "no model there (no config.json)"
    assert refusal(folder / WEIGHTS) == "a file, expected a model's folder in Hugging Face layout"
    (folder / "m.gguf").write_bytes(b"GGUF")
    assert refusal(folder) == "no model there (no config.json, only m.gguf, which is for llama.cpp)"
    assert refusal(folder / "m.gguf") == (
        "a file, GGUF, for llama.cpp: expected a model's folder in Hugging Face layout"
    )
    change(folder, "adapter_config.json", base_model_name_or_path="Qwen/Qwen3-8B")
    adapters = (
        "it holds adapters (adapter_config.json) and no whole model: merge them into Qwen/Qwen3-8B first (peft: "
        "merge_and_unload)"
    )
    assert refusal(folder) == adapters
    (folder / "adapter_config.json").write_text("{}")
    change(folder, model_type="qwen3")
    (folder / WEIGHTS).unlink()
    assert refusal(folder) == adapters.replace("Qwen/Qwen3-8B", "their base model")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "blobs" / "4665")
    assert refusal(folder) == "/config.json: a link to a file that is not there"


# --- quantised weights, and settings that can't be saved --------------------------------------------------------------


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "fp8"])
def test_quantised_weights_are_for_servers_alone(folder: Path, method: str) -> None:
    change(folder, quantization_config={"quant_method": method, "bits": 4})
    for use in (Use.train, Use.score):
        assert refusal(folder, use).startswith(f"its weights are quantised ({method}), which only a server can use")
    assert check_folder(folder, use=Use.serve).quantization == method


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_weights_of_any_precision_are_taken(folder: Path, dtype: torch.dtype) -> None:
    rewrite(folder, lambda tensors: tensors.update({name: value.to(dtype) for name, value in tensors.items()}))
    check_folder(folder, use=Use.train)
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    check_folder(folder, use=Use.train)


def test_quantised_weights_of_which_nothing_tells_are_refused(folder: Path) -> None:
    rewrite(folder, lambda tensors: tensors.update({UP: tensors[UP].to(torch.float8_e4m3fn)}))
    assert refusal(folder) == f"its weights are quantised, but its config.json does not say how: {UP} as F8_E4M3"


def test_generation_settings_that_can_not_be_saved_are_found_before_training(folder: Path) -> None:
    change(folder, "generation_config.json", temperature=0.6, do_sample=False)
    said = refusal(folder)
    assert said.startswith("/generation_config.json: transformers refuses to save these settings: ")
    assert "temperature" in said
    for use in (Use.score, Use.serve):
        check_folder(folder, use=use)
    (folder / "generation_config.json").write_text("{")
    assert refusal(folder, Use.serve).startswith("/generation_config.json: not JSON: ")
