"""Recipes: YAML and `key=value` overrides, laid over frozen dataclasses that hold every default.

A key that no dataclass has, or a value of another type, is an error that names it: nothing in a recipe is ignored.

The dataclass of a section may depend on the value of another key. A schema says so in a class variable:

    CHOSEN = {"world": ("tasks.world", settings_of)}      settings_of(its value): a subclass of the field's own type

Where a recipe chooses the names of sections (`dict[str, Dataclass]`), the dataclass may name a function in its class
variable FROM_FILE, `module:function`. A path in the place of a section is then read by it: function(path, name) is the
section's plain tree.

The names of its keys that are paths on this machine are in its class variable PATHS: `~` is the home folder there, and
a URL is refused.
"""

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import SequenceMatcher
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from coa.bounds import AT_LEAST_0, Bounds, OutOfBounds, check_bounds
from coa.errors import UserError
from coa.paths import local
from coa.written import NotYaml, of_override, of_recipe, plain, section_of, typed

T = TypeVar("T")

_NEW = object()
"""In a leaf's place: a section that a recipe names itself, such as `models.NAME`, begins."""
LONGEST_SHOWN = 80
_OVERRIDE = re.compile(r"[A-Za-z_]\w*(\.[\w-]+)*=.*", re.DOTALL)


def load(schema: type[T], recipe: Path | None = None, overrides: Sequence[str] = ()) -> T:
    """The schema's defaults, then the recipe, then the overrides; raises UserError with one line. A number whose field
    has no bounds (`coa.bounds`) must be at least 0.

    load(Recipe, Path("tiny.yaml"), ["rl.steps=3", "seed=1"]).rl.steps == 3
    """
    layers = [] if recipe is None else [(_parse_recipe(recipe), str(recipe))]
    return _build(schema, [*layers, *((_parse_override(override), override) for override in overrides)], AT_LEAST_0)


def from_plain(schema: type[T], tree: object, where: str, overrides: Sequence[str] = ()) -> T:
    """The schema's defaults, then a plain tree (what JSON holds), then the overrides; UserErrors name `where`."""
    return _build(schema, [(tree, where), *((_parse_override(override), override) for override in overrides)], ())


def _build(schema: type[T], layers: Sequence[tuple[object, str]], bounds: Bounds) -> T:
    config = OmegaConf.structured(schema)
    _make_writable(config)
    chosen = _schemas_of_sections(schema, config, layers)
    for section, held in chosen.items():
        OmegaConf.update(config, section, OmegaConf.structured(held))
        _make_writable(OmegaConf.select(config, section))
    for tree, where in layers:
        _lay_over(config, schema, tree, where, chosen)
    built = _to_object(config, layers)
    try:
        check_bounds(built, bounds)
    except OutOfBounds as error:
        raise _refusal(layers, str(error)) from error
    return cast(T, built)


def _to_object(config: DictConfig, layers: Sequence[tuple[object, str]], section: str = "") -> object:
    """The dataclass of a section. A ValueError of a `__post_init__` becomes a UserError that begins with the section's
    key, or with a whole key if the text begins with a field's name."""
    try:
        return OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise UserError(f"{_source(layers, str(error.full_key or ''))}: {_first_line(error)}") from error
    except (ValueError, TypeError) as error:
        for name, held in config.items():
            if isinstance(held, DictConfig):
                _to_object(held, layers, f"{section}.{name}".lstrip("."))
        problem = _first_line(error)
        between = "" if not section else "." if re.split(r"\W", problem, maxsplit=1)[0] in config else ": "
        raise _refusal(layers, f"{section}{between}{problem}") from error


def _source(layers: Sequence[tuple[object, str]], key: str) -> str:
    """The last recipe or override that sets a key; all of them if none does."""
    path = [name for name in key.split(".") if name]
    set_by = (where for tree, where in reversed(layers) if _value(tree, path, _NEW) is not _NEW)
    return next(set_by, ", ".join(where for _, where in layers) or "defaults")


def _refusal(layers: Sequence[tuple[object, str]], problem: str) -> UserError:
    """A problem that begins with its key, after the file that sets it; an override would only say the same."""
    key = re.split(r"[^\w.]", problem, maxsplit=1)[0]
    where = _source(layers, key)
    return UserError(problem if key and where.startswith(key) else f"{where}: {problem}")


def _schemas_of_sections(schema: type, config: DictConfig, layers: Sequence[tuple[object, str]]) -> dict[str, type]:
    """The dataclasses of the sections that another key chooses, by section."""
    found: dict[str, type] = {}
    for section, (key, settings_of) in getattr(schema, "CHOSEN", {}).items():
        value = OmegaConf.select(config, key)
        for tree, where in layers:
            value = typed(str | None, _value(tree, key.split("."), value))
            if not isinstance(value, str | None):
                raise UserError(f"{where}: {key} is {_brief(value)}, expected a name")
        found[section] = settings_of(value)
    return found


def _value(tree: object, path: Sequence[str], default: object) -> object:
    """Returns a plain tree's value at a key, or the default if the key is missing."""
    if not path:
        return tree
    tree = section_of(tree)
    if not isinstance(tree, Mapping) or path[0] not in tree:
        return default
    return _value(tree[path[0]], path[1:], default)


def dump(config: object) -> str:
    """YAML that `load` reads back to an equal configuration."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def _make_writable(config: DictConfig) -> None:
    """Every frozen dataclass makes a read-only node of its own; the flag of a parent does not reach it."""
    OmegaConf.set_readonly(config, False)
    for child in config.values():
        if isinstance(child, DictConfig):
            _make_writable(child)


def read(recipe: Path) -> object:
    """The plain tree of a YAML file; raises UserError with one line."""
    return plain(_parse_recipe(recipe))


def _parse_recipe(recipe: Path) -> object:
    """The tree of a YAML file, with what is written in it; raises UserError with one line."""
    try:
        return of_recipe(recipe.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"recipe {recipe}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"recipe {recipe}: not UTF-8 text") from error
    except yaml.YAMLError as error:
        raise UserError(f"recipe {recipe}: {_yaml_problem(error)}") from error
    except OmegaConfBaseException as error:
        raise UserError(f"recipe {recipe}: {_first_line(error)}") from error


def _parse_override(override: str) -> object:
    if not _OVERRIDE.fullmatch(override):
        raise UserError(f"{override!r} is not an override: write key=value, such as seed=1")
    key, _, text = override.partition("=")
    tree = of_override(text)
    for name in reversed(key.split(".")):
        tree = {name: tree}
    return tree


def _lay_over(config: DictConfig, schema: type, tree: object, where: str, chosen: Mapping[str, type]) -> None:
    known = [key for key, _ in known_keys(schema, chosen=chosen)]
    try:
        leaves = list(_leaves(schema, tree, where, known, chosen=chosen))
    except NotYaml as error:
        raise UserError(f"{where!r} is not an override: the value is not YAML") from error
    for key, value, hint in leaves:
        if value is _NEW:
            if OmegaConf.select(config, key) is None:
                OmegaConf.update(config, key, OmegaConf.structured(hint))
                _make_writable(OmegaConf.select(config, key))
            continue
        try:
            OmegaConf.update(config, key, value, merge=True)
        except OmegaConfBaseException as error:
            raise UserError(f"{where}: {key} is {_brief(value)}, expected {_type_name(hint)}") from error


def _leaves(
    schema: type,
    tree: object,
    where: str,
    known: Sequence[str],
    prefix: str = "",
    chosen: Mapping[str, type] = MappingProxyType({}),
) -> Iterator[tuple[str, object, object]]:
    """Dotted key, value and type of everything that a recipe sets; raises UserError at the first unknown key, and
    NotYaml."""
    tree = section_of(tree)
    if not isinstance(tree, Mapping):
        section = prefix.removesuffix(".") or "a recipe"
        raise UserError(f"{where}: {section} is {_brief(tree)}, expected a section with keys")
    hints = _hints(schema, prefix, chosen)
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if name not in hints:
            raise UserError(f"{where}: {_unknown(schema, key, prefix, known)}")
        if is_dataclass(hints[name]):
            yield from _leaves(hints[name], value, where, known, f"{key}.")
        elif section := named_section(hints[name]):
            value = section_of(value)
            if not isinstance(value, Mapping):
                raise UserError(f"{where}: {key} is {_brief(value)}, expected sections with names")
            for own, held in value.items():
                if not re.fullmatch(r"[\w-]+", str(own)):
                    raise UserError(f"{where}: {key}.{own}: a name may have letters, digits, _ and -")
                if hasattr(section, "FROM_FILE") and isinstance(path := typed(str, held), str):
                    held = _section_in(section, local(path, f"{where}: {key}.{own}"), str(own))
                yield f"{key}.{own}", _NEW, section
                inner = f"{key}.{own}."
                yield from _leaves(section, held, where, [k for k, _ in known_keys(section, inner)], inner)
        else:
            hint = hints[name]
            is_path = name in getattr(schema, "PATHS", ()) or Path in (hint, *get_args(hint))
            yield key, _paths(hint, value, f"{where}: {key}") if is_path else typed(hint, value), hint


def _section_in(section: type, path: str, name: str) -> object:
    """The section of that name, as the function of its dataclass reads it from a file."""
    module, _, function = section.FROM_FILE.partition(":")
    return getattr(importlib.import_module(module), function)(Path(path), name)


def _paths(hint: object, value: object, key: str) -> object:
    """A path, or a list of paths, in which `~` is the home folder. One path is a list of one, if the setting is a
    list. Raises UserError for a URL."""
    found = typed(hint, value)
    if get_origin(hint) is tuple and not isinstance(found, list) and isinstance(path := typed(str, value), str):
        if "," in path:
            raise UserError(f"{key} is {_brief(path)}, which has a comma: write a list, [A,B] or ['A']")
        found = [path]
    if isinstance(found, list):
        return [local(path, key) if isinstance(path, str) else path for path in found]
    return local(found, key) if isinstance(found, str) else found


def _unknown(schema: type, key: str, prefix: str, known: Sequence[str]) -> str:
    """Returns the refusal of a key that the schema does not have; one without any field may say why in `NO_KEYS`."""
    if not fields(schema) and hasattr(schema, "NO_KEYS"):
        return f"unknown key {key}: {schema.NO_KEYS}"
    nearest = max(known, key=lambda candidate: SequenceMatcher(None, key, candidate).ratio())
    return f"unknown key {key}; the nearest known key is {nearest}"


def _hints(schema: type, prefix: str, chosen: Mapping[str, type]) -> dict[str, Any]:
    """The types of a section's keys."""
    return {name: chosen.get(f"{prefix}{name}", hint) for name, hint in get_type_hints(schema).items()}


def named_section(hint: object) -> type | None:
    """The dataclass of a `dict[str, Dataclass]`, whose keys a recipe chooses."""
    arguments = get_args(hint)
    named = get_origin(hint) is dict and is_dataclass(arguments[1])
    return cast(type, arguments[1]) if named else None


def known_keys(
    schema: type, prefix: str = "", chosen: Mapping[str, type] = MappingProxyType({})
) -> Iterator[tuple[str, object]]:
    """Every dotted key of a schema with its type, sections before what they hold."""
    hints = _hints(schema, prefix, chosen)
    for field in fields(schema):
        key, hint = f"{prefix}{field.name}", hints[field.name]
        yield key, hint
        if is_dataclass(hint):
            yield from known_keys(cast(type, hint), f"{key}.")


def _type_name(hint: object) -> str:
    if isinstance(hint, type) and issubclass(hint, Enum):
        return f"one of {', '.join(member.name for member in hint)}"
    return hint.__name__ if type(hint) is type else str(hint)


def _brief(value: object) -> str:
    """A value as an error shows it: whole files of data have been taken for recipes."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = (getattr(error, "problem", None) or _first_line(error)).partition(". ")[0]
    return f"line {mark.line + 1}: {problem}" if mark else f"bad YAML: {problem}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
