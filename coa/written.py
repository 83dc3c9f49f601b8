"""Values as recipes and overrides write them. The type of a setting decides how its value is read.

YAML reads 3.10 as 3.1, 0042 as 34, `no` as false and 12:30 as 750. A setting that is a text keeps what is written.
"""

import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import ClassVar, get_args, get_origin

import yaml
from omegaconf import OmegaConf

_NOT_YAML = object()
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_WITHOUT_POINT = re.compile(r"\A[-+]?\d[\d_]*+[eE][-+]?\d++\Z")
"""A number such as 1e3, which is a text to YAML 1.1."""
_DECIMAL = re.compile(r"[-+]?\d++")


class NotYaml(ValueError):
    """The value of an override is not YAML, and its setting is no text."""


@dataclass(frozen=True, slots=True)
class Written:
    """A value with the text that was written for it, where YAML or an override reads no text: Written("0042", 34)."""

    text: str
    value: object


class _Loader(yaml.SafeLoader):
    """Reads YAML as OmegaConf does, and keeps what is written for each value that is no text. Keys are texts."""

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, form) for tag, form in forms if tag != "tag:yaml.org,2002:timestamp"]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        value = super().construct_object(node, deep)
        written = isinstance(node, yaml.ScalarNode) and not isinstance(value, str)
        return Written(node.value, value) if written else value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        found = super().construct_mapping(node, deep)
        return {key.text if isinstance(key, Written) else key: value for key, value in found.items()}


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _WITHOUT_POINT, list("-+0123456789"))


def of_recipe(text: str) -> object:
    """The tree of a recipe, whose scalars are texts or `Written`; raises YAMLError or OmegaConfBaseException."""
    OmegaConf.create(text)  # refuses a key that is there twice, and references that lead to themselves
    return yaml.load(text, _Loader) or {}


def of_override(text: str) -> object:
    """The value of an override. All of its text is kept, unless it is in quotes, brackets or braces."""
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError:
        return Written(text, _NOT_YAML)
    if text.lstrip()[:1] in ("'", '"', "[", "{"):
        return value
    if isinstance(value, Written):
        value = value.value
    comment = value is None and text.strip() not in _NULL
    return Written(text, _NOT_YAML if comment else value)


def plain(value: object) -> object:
    """The value as YAML reads it; raises NotYaml."""
    match value:
        case Written():
            if value.value is _NOT_YAML:
                raise NotYaml(value.text)
            return plain(value.value)
        case Mapping():
            return {key: plain(one) for key, one in value.items()}
        case list():
            return [plain(one) for one in value]
        case _:
            return value


def section_of(value: object) -> object:
    """The keys and values of a section, as they are written; raises NotYaml. Anything else is as YAML reads it."""
    found = value.value if isinstance(value, Written) else value
    return found if isinstance(found, Mapping) else plain(value)


def typed(hint: object, value: object) -> object:
    """The value by the type of its setting: texts, paths and names of members as they are written, whole numbers in
    decimal, and all else as YAML reads it. Raises NotYaml."""
    kind, optional = _kind(hint)
    parts = get_args(kind)
    match value:
        case Written():
            return _scalar(kind, value, optional=optional)
        case list() if get_origin(kind) in (tuple, list):
            each = parts if len(parts) == len(value) and ... not in parts else parts[:1] * len(value)
            return [typed(one, held) for one, held in zip(each, value, strict=True)]
        case Mapping() if get_origin(kind) is dict:
            return {key: typed(parts[1], held) for key, held in value.items()}
        case _:
            return plain(value)


def _kind(hint: object) -> tuple[object, bool]:
    """A type without None, and whether it had it; object for a choice among several."""
    parts = get_args(hint)
    if NoneType not in parts:
        return hint, False
    kinds = [part for part in parts if part is not NoneType]
    return (kinds[0] if len(kinds) == 1 else object), True


def _scalar(kind: object, value: Written, *, optional: bool) -> object:
    text = value.text.strip()
    if isinstance(kind, type) and issubclass(kind, str | Path | Enum):
        return None if not text or (optional and text in _NULL) else value.text
    if kind in (int, float) and isinstance(value.value, int | float):
        # YAML takes digits after a zero for octal ones, and those between colons for minutes.
        return int(text) if _DECIMAL.fullmatch(text) else text if ":" in text else value.value
    return plain(value)
