"""Rows in the layout of the published AFM sets."""

from typing import Any


def laid_out(*spans: tuple[str, str]) -> str:
    """Each tag on a line of its own, a blank line behind an observation."""
    return "".join(f"\n<{tag}>\n{text}\n</{tag}>\n" + "\n" * (tag == "observation") for tag, text in spans)


def row_of(instruction: str, output: str, **more: Any) -> dict[str, Any]:
    return {"instruction": instruction, "input": "", "output": output, **more}
