"""What vLLM can't serve is refused before it is started, and nothing else is."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.rollout import support
from actors.rollout.support import Supported, check_supported
from coa.errors import InfrastructureError, UserError
from coa.pretrained.folder import Pretrained

VLLM = Supported(["Qwen3ForCausalLM"], ["awq", "compressed-tensors", "inc", "modelopt"])


def model(quantization: str, architecture: str = "Qwen3ForCausalLM") -> Pretrained:
    config: Any = SimpleNamespace(model_type="qwen3")
    return Pretrained(Path("m"), config, (architecture,), quantization)


@pytest.mark.parametrize("method", ["awq", "AWQ", "compressed_tensors", "compressed-tensors", "auto-round", "modelopt"])
def test_methods_that_vllm_knows_by_this_or_another_name_are_taken(method: str) -> None:
    check_supported(model(method), lambda: VLLM)


def test_a_method_that_vllm_does_not_know_is_named() -> None:
    with pytest.raises(UserError, match=r"^m: its weights are quantised \(eetq\), which vLLM can't load here$"):
        check_supported(model("eetq"), lambda: VLLM)


@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("raise ImportError('no torch')", "vLLM can't be imported: ImportError: no torch"),
        ("import time; time.sleep(60)", "vLLM was not imported within 0.5 s"),
    ],
)
def test_why_vllm_says_nothing_is_one_line(program: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "ASK", program)
    monkeypatch.setattr(support, "ANSWER_S", 0.5 if "sleep" in program else 60.0)
    with pytest.raises(InfrastructureError) as caught:
        support.ask_vllm.__wrapped__()
    assert str(caught.value) == line


def test_vllm_is_not_asked_about_what_is_known() -> None:
    def never() -> Supported:
        raise AssertionError("asking takes seconds")

    check_supported(model(""), never)
