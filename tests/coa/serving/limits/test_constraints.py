"""Schemas, grammars and tools that a client sends for the model alone."""

import json
from typing import Any

import pytest

from coa.serving.faults import ApiError
from coa.serving.limits.constraints import check_constraints


def schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": fields}}}


def tools(count: int) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(count)]}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        value = {"items": value}
    return value


def as_text(key: str, **fields: Any) -> dict[str, Any]:
    return {"structured_outputs": {key: json.dumps(fields)}}


TREE = {"type": "object", "properties": {"next": {"$ref": "#"}, "down": {"$ref": "#/$defs/n"}}}
NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tools": None, "response_format": {"type": "text"}},
        tools(128),
        schema(enum=[f"v{i}" for i in range(1000)]),
        schema(**TREE, **{"$defs": {"n": NODE}}),
        schema(**{"$ref": "#/$defs/n", "$defs": {"n": NODE}}),
        schema(**{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/n"}, "n": NODE}}),
        schema(**{"$ref": "https://example.org/schema.json"}),
        schema(**nested(50)),
        {"structured_outputs": {"regex": "a" * 4096}},
        schema(**{"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)}}),
        {"messages": [{"content": "a" * 200_000}]},
        as_text("json", **TREE, **{"$defs": {"n": NODE}}),
        as_text(
            "structural_tag", structures=[{"begin": "<a>", "schema": TREE | {"$defs": {"n": NODE}}, "end": "</a>"}]
        ),
        schema(default={"json": "no schema"}),
    ],
    ids=range(15),
)
def test_what_people_send_is_taken(given: dict[str, Any]) -> None:
    check_constraints(given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (tools(3000), "tools: 3000 tools, at most 128"),
        (schema(enum=[f"v{i}" for i in range(1001)]), "1001 values to choose from, at most 1000"),
        ({"structured_outputs": {"choice": ["a"] * 50_000}}, "characters|50000 values"),
        (schema(properties={f"p{i}": {} for i in range(5001)}), "5001 properties"),
        (schema(**nested(5000)), "nested 65 deep, at most 64"),
        ({"structured_outputs": {"regex": "a" * 4097}}, "a regex of 4097 characters, at most 4096"),
        (schema(type="string", pattern="b" * 10_000), "a pattern of 10000 characters"),
        ({"structured_outputs": {"grammar": "root ::= " + "x" * 120_000}}, "characters, at most 120000"),
        (schema(**{"$ref": "#"}), "refers to itself without end"),
        (schema(**{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "itself"),
        (schema(**{"$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}, "anyOf": [{"$ref": "#/$defs/a"}]}), "itself"),
        (schema(properties={}, **{"$defs": {"a/b": {"$ref": "#/$defs/a~1b"}}}), "itself"),
        ({"tools": [{"name": "f", "input_schema": {"$ref": "#"}}]}, "tools: a \\$ref refers to itself"),
        (as_text("json", **{"$ref": "#"}), "structured_outputs: a \\$ref refers to itself"),
        (as_text("json", enum=[f"v{i}" for i in range(1001)]), "1001 values"),
        (as_text("structural_tag", structures=[{"schema": {"$ref": "#"}}]), "itself"),
        ({"structured_outputs": {"json": "{"}}, "json is not JSON"),
        ({"structured_outputs": {"json": "[" * 100_000}}, "json is not JSON"),
        ({"structured_outputs": {"json": "[" * 100 + "]" * 100}}, "nested 65 deep"),
    ],
    ids=range(19),
)
def test_what_would_hold_up_the_engine_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ApiError, match=told) as caught:
        check_constraints(given)
    assert caught.value.status == 400
