"""Sizes of language models, computed from their configurations: a `config.json`, or the published configuration of a
model that a recipe names.

Parameters of an architecture with gated feed-forward layers (Qwen2, Qwen3, Llama, Mistral), with hidden size h, H heads
and K key-value heads of size d, feed-forward size f, L layers and a vocabulary of V:

    attention     h H d + 2 h K d + H d h      Qwen2 adds biases H d + 2 K d, Qwen3 norms 2 d
    feed-forward  3 h f
    norms         2 h a layer, h at the end
    embeddings    V h, and V h for the output projection if it is not tied to them
"""

import re
from dataclasses import dataclass

from coa.json_object import Json, JsonView

KNOWN = {"qwen2", "qwen3", "llama", "mistral"}
"""Supported values of `model_type`."""
QWEN = {
    "0.5": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14},
    "1.5": {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12},
    "3": {"hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16},
    "7": {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28},
    "14": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48, "num_attention_heads": 40},
    "32": {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40},
}
"""Qwen2.5 (arXiv 2412.15115, table 1, and each model's `config.json`), by billions of parameters."""
QWEN3 = {
    "0.6": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "1.7": {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
    "8": {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32},
    "14": {"hidden_size": 5120, "intermediate_size": 17408, "num_hidden_layers": 40, "num_attention_heads": 40},
    "32": {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64, "num_attention_heads": 64},
}
"""Qwen3, dense (arXiv 2505.09388, table 1, and each model's `config.json`), by billions of parameters."""
SMOLLM = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
"""SmolLM2-135M (arXiv 2502.02737, and its `config.json`)."""
SMOLLM_NAME = re.compile(r"HuggingFaceTB/SmolLM2-135M(?:-Instruct)?")
QWEN3_NAME = re.compile(r"Qwen/Qwen3-(0\.6|1\.7|4|8|14|32)B(?:-Base|-Instruct-2507|-Thinking-2507)?")
QWEN_NAME = re.compile(r"Qwen/Qwen2\.5-(?:Coder-)?(0\.5|1\.5|3|7|14|32)B(?:-Instruct)?")


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of a model that determine memory and speed."""

    parameters: int
    """Number of parameters; an output projection that is tied to the embeddings is none of its own."""
    adapted: tuple[tuple[str, int, int], ...]
    """Name of each linear layer, its inputs and its outputs."""
    layers: int
    heads: int
    """Attention heads per layer."""
    hidden: int
    vocabulary: int
    kept: int
    """Elements per token that one layer keeps for the backward pass: inputs and outputs of its linear layers."""
    kv_heads: int
    kv_elements: int
    """Keys and values of one token in all layers."""

    def flops(self, context: float) -> float:
        """Floating-point operations of a forward pass for one token after `context` others: two for each parameter, and
        in each layer and head two for each element of the others' keys and values."""
        return 2 * self.parameters + 2 * self.kv_elements * self.heads / self.kv_heads * context


def published(name: str) -> Json | None:
    """The configuration (`config.json`) of a model on the Hugging Face hub; None if the model is not known here."""
    if SMOLLM_NAME.fullmatch(name):
        sizes = {**SMOLLM, "num_key_value_heads": 3, "vocab_size": 49152}
        return {"model_type": "llama", **sizes, "tie_word_embeddings": True}
    if found := QWEN3_NAME.fullmatch(name):
        return {
            "model_type": "qwen3",
            **QWEN3[found[1]],
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "tie_word_embeddings": float(found[1]) <= 4,
        }
    if (found := QWEN_NAME.fullmatch(name)) is None:
        return None
    billions = found[1]
    small = float(billions) <= 3
    return {
        "model_type": "qwen2",
        **QWEN[billions],
        "num_key_value_heads": 2 if small else 4 if billions == "7" else 8,
        "vocab_size": 151936 if small else 152064,
        "tie_word_embeddings": small,
    }


def architecture_of(config: JsonView) -> Architecture | None:
    """The sizes of a model with this `config.json`; None for an unsupported `model_type`.

    Raises KeyError if a size is missing.
    """
    kind = config.get("model_type")
    if kind not in KNOWN:
        return None
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    heads, vocabulary = config["num_attention_heads"], config["vocab_size"]
    kv_heads = config.get("num_key_value_heads") or heads
    size = config.get("head_dim") or hidden // heads
    linear = {
        "self_attn.q_proj": (hidden, heads * size),
        "self_attn.k_proj": (hidden, kv_heads * size),
        "self_attn.v_proj": (hidden, kv_heads * size),
        "self_attn.o_proj": (heads * size, hidden),
        "mlp.gate_proj": (hidden, inner),
        "mlp.up_proj": (hidden, inner),
        "mlp.down_proj": (inner, hidden),
    }
    biased = config.get("attention_bias", kind == "qwen2")
    biases = (heads + 2 * kv_heads) * size if biased else 0
    if biased and kind in ("qwen3", "llama"):
        biases += hidden  # attention's output projection
    norms = 2 * hidden + (2 * size if kind == "qwen3" else 0)
    layer = sum(inputs * outputs for inputs, outputs in linear.values()) + biases + norms
    names = ((f"model.layers.{n}.{name}", *sizes) for n in range(layers) for name, sizes in linear.items())
    ends = 1 if config.get("tie_word_embeddings", False) else 2
    return Architecture(
        parameters=layers * layer + hidden + ends * vocabulary * hidden,
        adapted=(*names, ("lm_head", hidden, vocabulary)),
        layers=layers,
        heads=heads,
        hidden=hidden,
        vocabulary=vocabulary,
        kept=sum(inputs + outputs for inputs, outputs in linear.values()),
        kv_heads=kv_heads,
        kv_elements=2 * layers * kv_heads * size,
    )
