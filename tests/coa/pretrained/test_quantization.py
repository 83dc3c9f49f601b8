"""How a model's folder says by which method its weights are quantised."""

from pathlib import Path
from typing import Any

import pytest

from coa.pretrained.folder import QUANTIZED_FILES, quantization_of

MODELOPT = {"name": "modelopt", "version": "0.37"}


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({}, ""),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "gptq"),
        ({"quantization_config": {"producer": MODELOPT, "quantization": {"quant_algo": "FP8"}}}, "modelopt"),
        ({"quantization_config": {"producer": MODELOPT, "quant_method": "awq"}}, "awq"),
        ({"quantization_config": {"producer": "modelopt"}}, "quantization_config"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
        ({"text_config": {"quantization_config": {"quant_method": "fp8"}}}, "fp8"),
    ],
)
def test_the_method_is_found_wherever_the_configuration_has_it(
    tmp_path: Path, config: dict[str, Any], method: str
) -> None:
    assert quantization_of(tmp_path, config) == method


@pytest.mark.parametrize(("file", "method"), QUANTIZED_FILES.items())
def test_files_of_older_tools_tell_the_method(tmp_path: Path, file: str, method: str) -> None:
    (tmp_path / file).write_text("{}")
    assert quantization_of(tmp_path, {}) == method
