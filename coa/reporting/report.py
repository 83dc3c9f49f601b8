"""Writes the results of a run: report.json, whose keys are a contract, and the page report.html."""

import json
from collections.abc import Sequence
from pathlib import Path

from coa.json_object import JsonView
from coa.reporting.boundary import SinkBoundary
from coa.reporting.metrics import Record
from coa.reporting.page import Example, page
from coa.storage.files import write_atomically
from coa.storage.jsonl import to_json

PAGE = "report.html"


def write_report(
    folder: Path,
    report: JsonView,
    metrics: Sequence[Record],
    examples: Sequence[Example] = (),
    title: str = "Chain-of-Agents",
    boundary: SinkBoundary | None = None,
) -> None:
    """Writes both files into `folder`, each atomically. If the run lacks a stage, its page shows the other stages; a
    page that fails, or a picture of it, is left out within the boundary. Numbers that are not finite are null.
    """
    text = to_json(report, indent=2)
    write_atomically(folder / "report.json", f"{text}\n")
    boundary, plain = boundary or SinkBoundary(), json.loads(text)
    boundary.attempt(PAGE, lambda: write_atomically(folder / PAGE, page(title, plain, metrics, examples, boundary)))
