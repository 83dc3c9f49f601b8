"""Every setting of a recipe: its key, type, unit, default, and the sentence that stands beside it in the code.

[one] = search(settings_of(Recipe()), "stale", "versions")
one.assignment == "rl.window.max_staleness=2"
one.sentence   == "Maximum staleness of a trained token, in weight versions. 0 makes training synchronous."
"""

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

from coa.bounds import bounds_of_fields, in_words
from coa.config import named_section
from coa.errors import UserError

NAME = "NAME"
"""In the key of a section that a recipe names itself: `models.NAME.endpoint.url`."""
UNITS = {
    "_s": "seconds",
    "_seconds": "seconds",
    "_gib": "GiB",
    "_mib": "MiB",
    "_bytes": "bytes",
    "_chars": "characters",
    "_tokens": "tokens",
    "_per_minute": "a minute",
}
"""The unit of a number, by the end of its key."""
PLAIN = {Path: "path", NoneType: "null", Any: "anything"}


@dataclass(frozen=True, slots=True)
class Setting:
    """One key, a section's among them."""

    key: str
    type: str | None
    """In the words of YAML, with its unit and bounds; None for a section."""
    default: object
    """None for a section too."""
    sentence: str

    @property
    def assignment(self) -> str:
        """The override that sets the default: "rl.steps=100"."""
        return f"{self.key}={in_yaml(self.default)}"


def settings_of(config: Any, prefix: str = "") -> Iterator[Setting]:
    """All keys of a tree of dataclasses in their order, each section before what it holds, with the tree's values for
    defaults."""
    hints, sentences = get_type_hints(type(config)), sentences_of(type(config))
    for field in fields(config):
        key, hint, value = f"{prefix}{field.name}", hints[field.name], getattr(config, field.name)
        if is_dataclass(value):
            yield Setting(key, None, None, sentences[field.name] or _summary(type(value)))
            yield from settings_of(value, f"{key}.")
        elif section := named_section(hint):
            yield Setting(f"{key}.{NAME}", None, None, sentences[field.name] or _summary(section))
            yield from settings_of(section(), f"{key}.{NAME}.")
        else:
            bounds = bounds_of_fields(type(config))[field.name]
            words = ", ".join([_type_in_words(hint, field.name), *([in_words(bounds)] if bounds else [])])
            yield Setting(key, words, value, sentences[field.name])


@cache
def sentences_of(schema: type) -> Mapping[str, str]:
    """The docstrings under the fields of a dataclass, those of its bases included, by field; "" where none stands."""
    found: dict[str, str] = {}
    for one in reversed(schema.__mro__):
        if one is object or not is_dataclass(one):
            continue
        [definition] = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        assert isinstance(definition, ast.ClassDef)
        for line, following in zip(definition.body, [*definition.body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found[line.target.id] = _docstring(following)
    return found


def _docstring(line: ast.stmt | None) -> str:
    if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and isinstance(line.value.value, str):
        return " ".join(line.value.value.split())
    return ""


def _summary(schema: type) -> str:
    """The first paragraph of a class's own docstring; dataclasses make one of their signature where none stands."""
    text = schema.__dict__.get("__doc__") or ""
    return "" if text.startswith(f"{schema.__name__}(") else " ".join(text.partition("\n\n")[0].split())


def _type_in_words(hint: object, name: str) -> str:
    """ "int or null (seconds)"."""
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), None)
    words = " or ".join(_plain_type(one) for one in get_args(hint)) if _is_union(hint) else _plain_type(hint)
    return f"{words} ({unit})" if unit and not {"str", "list"} & set(words.split()) else words


def _is_union(hint: object) -> bool:
    return NoneType in get_args(hint)


def _plain_type(hint: Any) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return " | ".join(member.name for member in hint)
    if arguments := get_args(hint):
        if issubclass(hint.__origin__, Mapping):
            return f"mapping of {_plain_type(arguments[1])}"
        return f"list of {_plain_type(arguments[0])}"
    return PLAIN.get(hint) or hint.__name__


def in_yaml(value: object) -> str:
    """A value as an override writes it: null, true, [a,b], lenient."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Enum():
            return value.name
        case tuple() | list():
            return f"[{','.join(in_yaml(one) for one in value)}]"
        case Mapping():
            return f"{{{','.join(f'{key}: {in_yaml(one)}' for key, one in value.items())}}}"
        case _:
            return f"'{value}'" if str(value) != str(value).strip() or value == "" else str(value)


def below(settings: Iterable[Setting], key: str) -> list[Setting]:
    """The setting of that key, or the section and all that it holds; raises UserError, which names the nearest."""
    every = list(settings)
    found = [one for one in every if one.key == key or one.key.startswith(f"{key}.")]
    if not found:
        [near] = get_close_matches(key, [one.key for one in every], n=1, cutoff=0.0)
        raise UserError(f"no setting {key}; the nearest is {near} (coa recipe --search WORD looks for words)")
    return found


def search(settings: Iterable[Setting], *words: str) -> list[Setting]:
    """The settings, not sections, whose key or sentence has all of the words, whatever their case."""
    found = [one for one in settings if one.type is not None]
    return [one for one in found if all(word.lower() in f"{one.key} {one.sentence}".lower() for word in words)]


def as_markdown(settings: Iterable[Setting]) -> str:
    """Tables of all settings, one for each section that stands at the top, and one for what stands in none."""
    tables: dict[str, list[Setting]] = {"": []}
    for one in settings:
        top, dot, _ = one.key.partition(".")
        tables.setdefault(top if dot or one.type is None else "", []).append(one)
    return "\n".join(part for top, rows in tables.items() for part in _table(top, rows))


def _table(top: str, rows: Iterable[Setting]) -> Iterator[str]:
    if top:
        yield f"\n## {top}\n"
    else:
        yield ""
    yield "| setting | type | default | |"
    yield "|---|---|---|---|"
    for one in rows:
        if one.type is None:
            yield f"| **`{one.key}`** | | | {_cell(one.sentence)} |"
        else:
            yield f"| `{one.key}` | {_cell(one.type)} | `{_cell(in_yaml(one.default))}` | {_cell(one.sentence)} |"


def _cell(text: str) -> str:
    return text.replace("|", r"\|")
