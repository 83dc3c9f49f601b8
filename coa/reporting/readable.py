"""Values formatted for readers; an unknown value is a dash."""

from collections.abc import Mapping
from typing import Any

from coa.json_object import JsonView

DASH = "-"


def look_up(report: JsonView, path: str, *keys: str) -> Any:
    """The value at a dotted path, then at the keys, which may have dots themselves; None if there is none.

    look_up(report, "evaluation.rl.families", "math.train")
    """
    value: object = report
    for key in (*path.split("."), *keys):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def percent(share: float | None, digits: int = 1) -> str:
    return DASH if share is None else f"{100 * share:.{digits}f} %"


def number(value: float | None) -> str:
    """Formats a number with thousands separated and at most three decimals: 12 345, 0.94, 0.000012."""
    if value is None:
        return DASH
    if isinstance(value, int) or value == round(value) or abs(value) >= 100:
        return f"{value:,.0f}".replace(",", "\u202f")
    return f"{value:.3g}"


def in_bytes(count: int) -> str:
    """Formats a size in the largest unit of which it has one: 17 B, 1.5 KiB, 2.0 GiB."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if count >= 2**power:
            return f"{count / 2**power:.1f} {unit}"
    return f"{count} B"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return DASH
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


def clock(seconds: float) -> str:
    """Formats a duration as on a clock: 0:09, 1:52, 1:02:33."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
