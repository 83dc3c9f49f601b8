"""Small plots as inline SVG: lines over steps, and estimates with their intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, isfinite, log10
from statistics import fmean

WIDTH, HEIGHT = 520, 230
LEFT, RIGHT, TOP, BOTTOM = 56, 14, 12, 34
POINTS = 300
"""More steps than this are averaged in buckets."""


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    colour: str
    points: Sequence[tuple[float, float]]
    """(step, value); values that are not finite are left out."""
    peaks: bool = False
    """A series of maxima: of a bucket the largest is shown, and nothing is smoothed."""


@dataclass(frozen=True, slots=True)
class Interval:
    label: str
    colour: str
    mean: float
    low: float
    high: float


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers over [low, high], both ends included: ticks(0, 0.93) is [0, 0.25, 0.5, 0.75, 1]."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    raw = (high - low) / count
    power = 10.0 ** floor(log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.9999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(n * step, 12) for n in range(first, last + 1)]


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """The mean over `reach` neighbours on each side, fewer at the ends: a course that does not lag behind."""
    return [fmean(values[max(0, n - reach) : n + reach + 1]) for n in range(len(values))]


def thin(series: Series, limit: int = POINTS) -> list[tuple[float, float]]:
    """At most `limit` finite points, of equal buckets: their means, or their largest for a series of maxima."""
    points = [point for point in series.points if isfinite(point[1])]
    size = ceil(len(points) / limit) or 1
    combine = max if series.peaks else fmean
    buckets = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in bucket), combine(y for _, y in bucket)) for bucket in buckets]


def line_chart(series: Sequence[Series], x_label: str = "step") -> str:
    """Lines over steps. A long, noisy line is drawn light, with its smoothed course over it."""
    shown = [(one, thin(one)) for one in series]
    everything = [point for _, points in shown for point in points]
    if not everything:
        return '<p class="none">nothing recorded</p>'
    ys = ticks(min(0.0, *(y for _, y in everything)), max(y for _, y in everything))
    last = max(x for x, _ in everything)
    xs = [x for x in ticks(0, max(1.0, last), 5) if x <= max(1.0, last)]

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * x / max(1.0, last)
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (y - ys[0]) / (ys[-1] - ys[0])

    parts = [_grid(xs, ys, at, x_label)]
    for one, points in shown:
        if len(points) > 25 and not one.peaks:
            parts.append(_path([at(*point) for point in points], one.colour, 'stroke-opacity=".4" stroke-width="1"'))
            smoothed = smooth([y for _, y in points], len(points) // 25)
            points = [(x, y) for (x, _), y in zip(points, smoothed, strict=True)]
        if points:
            parts.append(
                _path([at(*point) for point in points], one.colour, f'stroke-width="{1.2 if one.peaks else 2}"')
            )
            x, y = at(*points[-1])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{one.colour}"/>')
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">{"".join(parts)}</svg>{_legend(series)}'


def interval_chart(rows: Sequence[Interval]) -> str:
    """A dot for each estimate on a scale of 0 to 100 %, with its 95 % interval."""
    height, left, right = 34 * len(rows) + 26, 150, 84
    width = 2 * WIDTH

    def at(share: float) -> float:
        return left + (width - left - right) * share

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        x = at(share)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="4" x2="{x:.1f}" y2="{height - 22}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{share:.0%}</text>')
    for index, row in enumerate(rows):
        y = 34 * index + 21
        parts.append(f'<text class="name" x="{left - 14}" y="{y + 4.5}" text-anchor="end">{escape(row.label)}</text>')
        line = f'x1="{at(row.low):.1f}" y1="{y}" x2="{at(row.high):.1f}" y2="{y}"'
        parts.append(
            f'<line {line} stroke="{row.colour}" stroke-width="6" stroke-opacity=".28" stroke-linecap="round"/>'
        )
        parts.append(f'<circle cx="{at(row.mean):.1f}" cy="{y}" r="6" fill="{row.colour}"/>')
        parts.append(f'<text class="value" x="{at(row.high) + 12:.1f}" y="{y + 4.5}">{100 * row.mean:.1f} %</text>')
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'


Place = Callable[[float, float], tuple[float, float]]
"""Where a (step, value) is drawn."""


def _grid(xs: Sequence[float], ys: Sequence[float], at: Place, x_label: str) -> str:
    parts = []
    for y in ys:
        _, down = at(0, y)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{down:.1f}" x2="{WIDTH - RIGHT}" y2="{down:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{down + 4:.1f}" text-anchor="end">{y:.4g}</text>')
    for x in xs:
        across, _ = at(x, ys[0])
        parts.append(
            f'<text class="tick" x="{across:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:.6g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick" x="{middle}" y="{HEIGHT - 2}" text-anchor="middle">{escape(x_label)}</text>')
    return "".join(parts)


def _path(points: Sequence[tuple[float, float]], colour: str, style: str) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-linejoin="round" {style}/>'


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    entries = "".join(f'<span><i style="background:{one.colour}"></i>{escape(one.label)}</span>' for one in series)
    return f'<div class="legend">{entries}</div>'
