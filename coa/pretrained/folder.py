"""Checks of a model's folder: whether it holds a whole causal language model that can be trained, or only served.

config.json ── architecture ── weight files ── tensors by name and shape ── generation_config.json
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from coa.errors import UserError
from coa.json_object import Json, JsonView
from coa.pretrained.fit import causal_class, check_fit
from coa.pretrained.reading import quiet, read_object, reading
from coa.pretrained.weights import ADAPTER, WITH_ADAPTERS, Stored, few, has_weights, stored_tensors

if TYPE_CHECKING:
    import transformers

CONFIG, GENERATION = "config.json", "generation_config.json"
WHOLE = ("F64", "F32", "F16", "BF16")
"""Types of numbers of weights that are not quantised."""
QUANTIZED = ("quantization_config", "compression_config")
"""Keys of `config.json` that describe quantised weights."""
QUANTIZED_FILES = {
    "quantize_config.json": "quantize_config.json",
    "quant_config.json": "quant_config.json",
    "hf_quant_config.json": "modelopt",
}
"""Files in which older tools describe quantised weights, and the method; vLLM reads the last one only."""


class Use(Enum):
    """Purposes for which a model is loaded."""

    train = "train"
    """transformers loads it, and saves it beside new weights."""
    score = "score"
    """transformers loads it, to compute log-probs."""
    serve = "serve"
    """vLLM loads it."""


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A model's folder that was checked."""

    folder: Path
    config: "transformers.PreTrainedConfig"
    """Its configuration, as transformers reads it."""
    architectures: tuple[str, ...]
    """Names of its classes in transformers, as its `config.json` gives them."""
    quantization: str
    """Name of the method by which its weights are quantised; empty if they are not."""

    @property
    def text(self) -> "transformers.PreTrainedConfig":
        """The configuration of its language model."""
        return self.config.get_text_config()


def check_folder(folder: Path, *, use: Use) -> Pretrained:
    """Reads the configuration and the headers of the weights, but no weights; raises UserError for the first thing that
    would stop a command which loads them."""
    raw = config_in(folder)
    if (folder / ADAPTER).exists():
        raise UserError(f"{folder}: {WITH_ADAPTERS if has_weights(folder) else _adapters(folder)}")
    quantization = quantization_of(folder, raw)
    if use is not Use.serve and quantization:
        raise UserError(
            f"{folder}: its weights are quantised ({quantization}), which only a server can use: take the model that "
            "they were made from"
        )
    config = _read_config(folder, raw)
    found = Pretrained(folder, config, _names(raw.get("architectures")), quantization)
    model_class = _check_kind(found, use=use)
    stored = stored_tensors(folder)
    if not quantization:
        _check_types(folder, stored)
        if model_class is not None:
            check_fit(str(folder), model_class, config, stored, heads=use is not Use.serve)
    _check_generation(found, use=use)
    return found


def config_in(folder: Path) -> Json:
    """The folder's `config.json`; raises UserError, with what is there instead, if it has none."""
    if folder.is_file():
        kind = "GGUF, for llama.cpp: " if folder.suffix == ".gguf" else ""
        raise UserError(f"{folder}: a file, {kind}expected a model's folder in Hugging Face layout")
    path = folder / CONFIG
    if path.is_symlink() or path.is_file():
        return read_object(path)
    if (folder / ADAPTER).is_file():
        raise UserError(f"{folder}: {_adapters(folder)}")
    gguf = sorted(one.name for one in folder.glob("*.gguf"))
    there = f", only {gguf[0]}, which is for llama.cpp" if gguf else ""
    raise UserError(f"{folder}: no model there (no {CONFIG}{there})")


def _adapters(folder: Path) -> str:
    base = read_object(folder / ADAPTER).get("base_model_name_or_path") or "their base model"
    return f"it holds adapters ({ADAPTER}) and no whole model: merge them into {base} first (peft: merge_and_unload)"


def quantization_of(folder: Path, raw: JsonView) -> str:
    """Name of the method by which a folder's weights are quantised; empty if they are not. raw: its `config.json`."""
    for section in (raw, raw.get("text_config")):
        for key in QUANTIZED:
            if isinstance(section, Mapping) and isinstance(described := section.get(key), Mapping):
                return _method(described)
    return next((method for name, method in QUANTIZED_FILES.items() if (folder / name).is_file()), "")


def _method(described: JsonView) -> str:
    """Name of the method, of which ModelOpt writes only its own name, as the producer."""
    producer = described.get("producer")
    named = producer.get("name") if isinstance(producer, Mapping) else None
    return str(described.get("quant_method") or named or "quantization_config")


def _names(value: object) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else ()


def _read_config(folder: Path, raw: JsonView) -> "transformers.PreTrainedConfig":
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = raw.get("model_type")
    if not isinstance(kind, str):
        raise UserError(f"{folder}: its {CONFIG} has no model_type, such as qwen3 or llama")
    if kind not in CONFIG_MAPPING:
        if raw.get("auto_map"):
            raise UserError(f"{folder}: {kind} needs Python code of its own (auto_map), which is never run")
        near = get_close_matches(kind, CONFIG_MAPPING, 1)
        hint = f"; the nearest that it knows is {near[0]}" if near else ""
        raise UserError(f"{folder}: transformers {transformers.__version__} knows no model_type {kind!r}{hint}")
    with reading(f"{folder}: its {CONFIG} describes no model"), quiet():
        return transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _check_kind(found: Pretrained, *, use: Use) -> "type[transformers.PreTrainedModel] | None":
    """transformers' class of the causal language model; None if it has none, and vLLM decides. Raises UserError if the
    model is of another kind, or sees images and is to be trained."""
    sees = found.text is not found.config
    if use is not Use.serve and sees:
        what = found.config.model_type
        raise UserError(f"{found.folder}: {what} takes images or sound too; only models of text alone can be trained")
    kind = None if sees else causal_class(found.config)
    own, of_text = getattr(kind, "__name__", ""), ("ForCausalLM", "LMHeadModel", "Model")
    other = [name for name in found.architectures if name != own and not name.endswith(of_text)]
    if (other and not sees) or (use is not Use.serve and kind is None):
        what = other[0] if other else found.config.model_type
        raise UserError(f"{found.folder}: {what} is no causal language model")
    return kind


def _check_types(folder: Path, stored: Mapping[str, Stored]) -> None:
    weights = {name: one for name, one in stored.items() if name.endswith("weight")}
    if odd := sorted(f"{name} as {one.dtype}" for name, one in weights.items() if one.dtype not in WHOLE):
        raise UserError(f"{folder}: its weights are quantised, but its {CONFIG} does not say how: {few(odd)}")


def _check_generation(found: Pretrained, *, use: Use) -> None:
    """Raises UserError if a `generation_config.json` can't be read or, for a model that is trained, if transformers
    would refuse to save it, or the configuration, beside new weights."""
    from transformers import GenerationConfig

    path = found.folder / GENERATION
    settings = None
    if path.is_symlink() or path.is_file():
        read_object(path)
        with reading(f"{path}: no generation settings"), quiet():
            settings = GenerationConfig.from_pretrained(found.folder, local_files_only=True)
    if use is not Use.train:
        return
    with tempfile.TemporaryDirectory() as folder:
        if settings is not None:
            with reading(f"{path}: transformers refuses to save these settings"):
                settings.validate(strict=True)
        with reading(f"{found.folder}: transformers refuses to save its {CONFIG}"):
            found.config.save_pretrained(folder)
