"""How long the context of a model may be, by the forms of its configuration: as long as vLLM makes it."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from coa.pretrained.positions import hint_of, positions_of

LLAMA = {"model_type": "llama", "max_position_embeddings": 512, "rope_theta": 1e4}
LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 256}
LINEAR = {"type": "linear", "factor": 8.0}
YARN = {"factor": 4.0, "original_max_position_embeddings": 512}


def read(folder: Path, config: dict[str, Any]) -> Any:
    (folder / "config.json").write_text(json.dumps(config))
    return AutoConfig.from_pretrained(folder).get_text_config()


def v4(kind: str, **more: Any) -> dict[str, Any]:
    return LLAMA | {"rope_scaling": {"type": kind, **more}}


def v5(kind: str, **more: Any) -> dict[str, Any]:
    return LLAMA | {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **more}}


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        (LLAMA, 512),
        (v4("linear", factor=4.0), 2048),
        (v5("linear", factor=2.5), 1280),
        (v4("dynamic", factor=2.0), 1024),
        (v5("dynamic", factor=2.0), 1024),
        (v5("linear", factor=None), 512),
        (v5("default"), 512),
        (v4("llama3", factor=8.0, **LLAMA_3), 512),
        (v4("yarn", **YARN), 512),
        (v5("yarn", **YARN), 512),
        (v5("yarn", **YARN) | {"max_position_embeddings": 2048}, 2048),
        ({"model_type": "gpt2", "n_positions": 256}, 256),
        ({"model_type": "mpt", "max_seq_len": 300}, 300),
        ({"model_type": "cohere", "max_position_embeddings": 8192, "model_max_length": 131072}, 131072),
        (
            {"model_type": "gemma3_text", "max_position_embeddings": 4096, "rope_scaling": YARN | {"type": "linear"}},
            4096,
        ),
        ({"model_type": "bloom"}, None),
    ],
)
def test_a_context_is_as_long_as_vllm_makes_it(config: dict[str, Any], positions: int | None, tmp_path: Path) -> None:
    assert positions_of(read(tmp_path, config)) == positions


@pytest.mark.parametrize("form", [v4, v5])
def test_yarn_that_was_only_added_to_a_configuration_has_a_hint(form: Any, tmp_path: Path) -> None:
    hint = "; for YaRN to reach its 2048, set max_position_embeddings of its config.json to that"
    assert hint_of(read(tmp_path, form("yarn", **YARN))) == hint
    assert hint_of(read(tmp_path, form("yarn", **YARN) | {"max_position_embeddings": 2048})) == ""
    assert hint_of(read(tmp_path, form("linear", factor=4.0))) == ""
