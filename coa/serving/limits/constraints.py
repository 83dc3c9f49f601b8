"""Bounds of what a client may constrain the model alone to: compiling a huge schema, or one that refers to itself
without end, would hold up the whole engine.

The numbers are those of OpenAI's structured outputs and functions, where it has one.
"""

import json
from collections.abc import Iterator, Sequence

from coa.json_object import JsonView
from coa.serving.faults import ApiError, invalid

CONSTRAINING = ("tools", "response_format", "text", "output_config", "structured_outputs")
"""Parameters with schemas, grammars, regular expressions or choices."""
SCHEMAS = ("schema", "parameters", "input_schema", "json")
"""Names under which a parameter has a JSON schema."""
TEXTS = ("json", "structural_tag")
"""Names in `structured_outputs` under which a schema may be JSON text."""
TOOLS = 128
CHARACTERS = 120_000
"""Of all constraints of a request, as JSON."""
REGEX = 4096
PROPERTIES, ENUM_VALUES, DEPTH = 5000, 1000, 64


def check_constraints(given: JsonView) -> None:
    """Raises ApiError if a request's constraints are too large, or if a schema refers to itself without end."""
    for name in CONSTRAINING:
        if (value := given.get(name)) is not None:
            _check(name, value)


def _check(name: str, value: object) -> None:
    if name == "tools" and isinstance(value, list) and len(value) > TOOLS:
        raise _too_large(name, f"{len(value)} tools, at most {TOOLS}")
    _check_depth(name, value)
    if (size := len(json.dumps(value, ensure_ascii=False))) > CHARACTERS:
        raise _too_large(name, f"{size} characters, at most {CHARACTERS}")
    if name == "structured_outputs" and isinstance(value, dict):
        texts = {key: inner for key in TEXTS if isinstance(inner := value.get(key), str)}
        value = {**value, **{key: _loaded(name, key, text) for key, text in texts.items()}}
        _check_depth(name, value)
    properties = enum_values = 0
    for node in _objects(value):
        properties += len(found) if isinstance(found := node.get("properties"), dict) else 0
        enum_values += sum(len(found) for key in ("enum", "choice") if isinstance(found := node.get(key), list))
        for key in ("regex", "pattern"):
            if isinstance(text := node.get(key), str) and len(text) > REGEX:
                raise _too_large(name, f"a {key} of {len(text)} characters, at most {REGEX}")
    if any(map(_never_ends, _schemas(value))):
        raise invalid(f"{name}: a $ref refers to itself without end", name)
    if properties > PROPERTIES:
        raise _too_large(name, f"{properties} properties, at most {PROPERTIES}")
    if enum_values > ENUM_VALUES:
        raise _too_large(name, f"{enum_values} values to choose from, at most {ENUM_VALUES}")


def _check_depth(name: str, value: object) -> None:
    if (depth := _depth(value)) > DEPTH:
        raise _too_large(name, f"nested {depth} deep, at most {DEPTH}")


def _loaded(name: str, key: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(f"{name}: {key} is not JSON: {str(error)[:100]}", name) from error


def _too_large(name: str, why: str) -> ApiError:
    return invalid(f"{name}: {why}", name, "constraint_too_large")


def _depth(value: object) -> int:
    """How deep lists and objects are nested."""
    level, depth = [value], 0
    while level := [inner for one in level for inner in _inner(one)]:
        depth += 1
        if depth > DEPTH:
            break
    return depth


def _inner(value: object) -> Sequence[object]:
    match value:
        case dict():
            return list(value.values())
        case list():
            return value
        case _:
            return ()


def _objects(value: object) -> Iterator[JsonView]:
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            yield one
        rest += _inner(one)


def _schemas(value: object) -> Iterator[JsonView]:
    """The schemas in a parameter, each the root of its own references."""
    rest = [value]
    while rest:
        one = rest.pop()
        if isinstance(one, dict):
            for key, inner in one.items():
                if key in SCHEMAS and isinstance(inner, dict):
                    yield inner
                else:
                    rest.append(inner)
        else:
            rest += _inner(one)


def _never_ends(root: JsonView) -> bool:
    """Whether a $ref of the schema leads back to itself before it comes to any property or item. A schema whose
    properties have itself as their type is fine."""
    ended: set[int] = set()
    for start in _objects(root):
        path: dict[int, Iterator[object]] = {id(start): _same_value(root, start)}
        while path:
            here, rest = next(reversed(path.items()))
            following = next((one for one in rest if isinstance(one, dict) and id(one) not in ended), None)
            if following is None:
                ended.add(here)
                del path[here]
            elif id(following) in path:
                return True
            else:
                path[id(following)] = _same_value(root, following)
    return False


def _same_value(root: JsonView, node: JsonView) -> Iterator[object]:
    """The schemas that hold for the value that the node is for."""
    if isinstance(reference := node.get("$ref"), str):
        yield _resolved(root, reference)
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(found := node.get(key), list):
            yield from found


def _resolved(root: object, reference: str) -> object:
    """The target of a reference within the schema, such as `#/$defs/node`; None if there is none."""
    if not reference.startswith("#"):
        return None
    for part in filter(None, reference.removeprefix("#").split("/")):
        key = part.replace("~1", "/").replace("~0", "~")
        root = root.get(key) if isinstance(root, dict) else None
    return root
