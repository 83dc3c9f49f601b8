"""Markdown from plain values, for cards."""

import json
from collections.abc import Iterable, Mapping

import yaml

from coa.json_object import JsonView

LICENSE = "other"
LICENSE_NOTE = (
    "**To be filled in by whoever publishes this.** What may be done with it depends on the licence of the tasks, on "
    "the terms of the models that wrote or were trained, and on those of what tools returned."
)
TAGS = ["chain-of-agents", "agent", "tool-use"]


def front(values: JsonView) -> str:
    return f"---\n{yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)}---"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)


def code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"


def joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def flat(tree: JsonView, prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in tree.items():
        if isinstance(value, Mapping):
            rows += flat(value, f"{prefix}{name}.")
        else:
            rows.append((f"`{prefix}{name}`", json.dumps(value)))
    return rows


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def rows_of_counts(counts: Mapping[str, int]) -> Iterable[tuple[str, str]]:
    return ((key or "-", f"{n:,}") for key, n in counts.items())
