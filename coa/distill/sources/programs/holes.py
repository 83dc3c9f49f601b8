"""Finds the results of several tools in one text that an agent saw, given the fixed text around each result.

    parts    "Vexon Labs: ", 0, "\\nNora Lind: ", 1, "\\n"
    text     "Vexon Labs: owned by Nora Lind\\nNora Lind: born in Berg\\n"      {0: "owned by Nora Lind", 1: ...}

If a text fits in two ways, no result is returned. Time is linear in the text for each part.
"""

from collections.abc import Sequence

from coa.distill.sources.frames import HEADING

Parts = Sequence[str | int]


def fill(parts: Parts, text: str) -> dict[int, str] | None:
    """The stripped text of each hole, by its number; None if the text does not fit the parts, or fits in several ways.
    White space at the text's ends is ignored."""
    found = _fill(parts, text)
    if found is None and HEADING in text:
        # The search tools of smolagents begin each result with this heading.
        headed = [part for one in parts for part in ((HEADING, one) if one in range(len(parts)) else (one,))]
        found = _fill(headed, text)
        found = found and {hole: HEADING + within for hole, within in found.items()}
    return None if found is None else {hole: within.strip() for hole, within in found.items()}


def _fill(parts: Parts, text: str) -> dict[int, str] | None:
    frame: list[str] = [""]
    """The fixed texts before, between and after the holes."""
    holes: list[int] = []
    for part in parts:
        if isinstance(part, int):
            holes.append(part)
            frame.append("")
        else:
            frame[-1] += part
    first, last = frame[0], frame[-1]
    if not holes:
        return {} if text.strip() == last.strip() else None
    if not _surround(first, last, text):  # the agent's loop has stripped the text
        first, last, text = first.lstrip(), last.rstrip(), text.strip()
    if not _surround(first, last, text):
        return None
    inner = text[len(first) : len(text) - len(last)]
    early, late = _ends(frame[1:-1], inner), _ends_from_behind(frame[1:-1], inner)
    if early is None or early != late:
        return None
    found: dict[int, str] = {}
    at = 0
    for hole, (end, following) in zip(holes, [*early, (len(inner), len(inner))], strict=True):
        if found.setdefault(hole, inner[at:end]).strip() != inner[at:end].strip():
            return None
        at = following
    return found


def _surround(first: str, last: str, text: str) -> bool:
    return text.startswith(first) and text.endswith(last) and len(text) >= len(first) + len(last)


def _ends(between: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """The earliest (begin, end) of each part, in order; None if a part is missing."""
    found: list[tuple[int, int]] = []
    at = 0
    for part in between:
        begin = text.find(part, at)
        if begin < 0:
            return None
        at = begin + len(part)
        found.append((begin, at))
    return found


def _ends_from_behind(between: Sequence[str], text: str) -> list[tuple[int, int]] | None:
    """The latest (begin, end) of each part, in order; None if a part is missing."""
    found: list[tuple[int, int]] = []
    at = len(text)
    for part in reversed(between):
        begin = text.rfind(part, 0, at)
        if begin < 0:
            return None
        found.append((begin, begin + len(part)))
        at = begin
    return found[::-1]
