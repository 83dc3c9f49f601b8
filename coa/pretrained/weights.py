"""The tensors that a model's folder holds, from the headers of its weight files; no weights are read.

model.safetensors              one file, or
model.safetensors.index.json   shards that the index names; else the same as pytorch_model.bin
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from coa.errors import UserError
from coa.pretrained.reading import read_object, reading, require_content

FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of the weight files, in the order in which transformers looks for them."""
ADAPTER = "adapter_config.json"
WITH_ADAPTERS = (
    f"it holds adapters ({ADAPTER}), which transformers would load onto the model: remove them if they are merged into "
    "its weights, and merge them first if not (peft: merge_and_unload)"
)
"""Refusal of a model that has adapters beside its weights."""
NAMED = 3
"""Maximum number of files or tensors that an error names."""


class Stored(NamedTuple):
    """A tensor in a file."""

    shape: tuple[int, ...]
    dtype: str
    """Type of its numbers as safetensors names it, such as BF16."""


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a model's folder by name; raises UserError if there are no weights or a file is damaged."""
    found: dict[str, Stored] = {}
    for path in weight_files(folder):
        require_content(path)
        found |= dict(_safetensors(path) if path.suffix == ".safetensors" else _pickled(path))
    return found


def is_fetched(folder: Path) -> bool:
    """Whether a folder of the hub's cache has all weight files and a tokenizer; what is missing is fetched later."""
    return has_weights(folder) and any(folder.glob("tokenizer*"))


def has_weights(folder: Path) -> bool:
    """Whether a model's folder has all its weight files."""
    try:
        return bool(weight_files(folder))
    except UserError:
        return False


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the model's weights; raises UserError if there are none, or a shard is missing."""
    for name in FILES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_symlink() or (folder / name).is_file():
            return [folder / name]
        if index.is_symlink() or index.is_file():
            return _shards(index)
    raise UserError(f"{folder}: no weights there ({_instead(folder)})")


def _shards(index: Path) -> list[Path]:
    placed = read_object(index).get("weight_map")
    if not isinstance(placed, Mapping) or not placed or not all(isinstance(name, str) for name in placed.values()):
        raise UserError(f"{index}: it has no weight_map that names the files of the weights")
    paths = [index.parent / name for name in sorted(set(placed.values()))]
    if missing := [path.name for path in paths if not (path.is_symlink() or path.is_file())]:
        raise UserError(
            f"{index.parent}: {len(missing)} of the {len(paths)} files of its weights are missing: {few(missing)}"
        )
    return paths


def _instead(folder: Path) -> str:
    """Describes what the folder holds in place of weights that can be loaded."""
    names = sorted(path.name for path in folder.iterdir())
    if gguf := [name for name in names if name.endswith(".gguf")]:
        return f"{gguf[0]} is GGUF, for llama.cpp: get the model in Hugging Face layout"
    others = [name for name in names if name.endswith((".safetensors", ".bin", ".pt", ".pth", ".h5", ".msgpack"))]
    if others:
        return f"it holds {few(others)}, and neither {FILES[0]} nor {FILES[0]}.index.json"
    return f"neither {FILES[0]} nor {FILES[0]}.index.json"


def _safetensors(path: Path) -> Iterator[tuple[str, Stored]]:
    from safetensors import safe_open

    with reading(f"{path}: cut short or damaged"), safe_open(path, framework="np") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            found = file.get_slice(name)
            yield name, Stored(tuple(found.get_shape()), found.get_dtype())


def _pickled(path: Path) -> Iterator[tuple[str, Stored]]:
    import torch

    with reading(f"{path}: cut short or damaged"):
        found = torch.load(path, map_location="meta", weights_only=True)
    if not isinstance(found, Mapping):
        raise UserError(f"{path}: a {type(found).__name__}, expected tensors by their names")
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise UserError(f"{path}: {name} is a {type(value).__name__}, expected tensors by their names")
        yield name, Stored(tuple(value.shape), _DTYPES.get(str(value.dtype), str(value.dtype)))


_DTYPES = {"torch.float32": "F32", "torch.bfloat16": "BF16", "torch.float16": "F16", "torch.float64": "F64"}


def few(names: list[str]) -> str:
    """The first names of a list: "a, b, c and 5 more"."""
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
