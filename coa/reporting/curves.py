"""The curves of a run's page: a table from metrics to charts, and functions that draw those that have data as SVG, for
use in a page that names the lines."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, isfinite
from statistics import fmean
from typing import TYPE_CHECKING

from coa.reporting.boundary import SinkBoundary
from coa.reporting.metrics import Record

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.ticker
    import matplotlib.typing

GREY, BLUE, AMBER, GREEN, VIOLET, RED = "#8794a8", "#2463c9", "#c77a0a", "#157a3d", "#7a3fc0", "#b3362b"
SFT, RL = GREY, BLUE
"""The colours of the two models, the same in every plot and table."""
PARTS = (AMBER, GREEN, VIOLET, RED, "#0f766e", "#9a3fa8", "#4a5a4c", "#1d5fc4")
"""The colours of categories, such as families or reasons."""

POINTS = 300
"""Maximum number of points of a line; more steps are averaged in buckets."""
SMOOTHED = 25
"""A line of more points than this is drawn in a light colour, with the smoothed line over it."""
INK, SOFT, LINE = "#1b2430", "#5d6878", "#e3e7ed"
NAMED = {INK: "--ink", SOFT: "--soft", LINE: "--line"}
"""Colors that are CSS variables of the page, which differ in dark mode (`templates/report.css`). All other colors are
lightened there by its `--lift`."""
SETTINGS: "dict[matplotlib.typing.RcKeyType, object]" = {
    # Text is not converted to paths: it is smaller, can be searched, and has the page's font.
    "svg.fonttype": "none",
    # Makes the SVG of equal figures equal.
    "svg.hashsalt": "coa",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": SOFT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": SOFT,
    "ytick.labelcolor": SOFT,
    "ytick.left": False,
}


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    colour: str
    points: Sequence[tuple[float, float]]
    """(step, value) pairs; values that are not finite are left out."""
    peaks: bool = False
    """Whether the series consists of maxima: a bucket then shows its maximum, and nothing is smoothed."""


def smooth(values: Sequence[float], reach: int) -> list[float]:
    """The centered mean over `reach` neighbors on each side, fewer at the ends."""
    return [fmean(values[max(0, n - reach) : n + reach + 1]) for n in range(len(values))]


def thin(series: Series, limit: int = POINTS) -> list[tuple[float, float]]:
    """At most `limit` finite points: the means of equal buckets, or their maxima for a series of maxima."""
    points = [point for point in series.points if isfinite(point[1])]
    size = ceil(len(points) / limit) or 1
    combine = max if series.peaks else fmean
    buckets = [points[start : start + size] for start in range(0, len(points), size)]
    return [(fmean(x for x, _ in bucket), combine(y for _, y in bucket)) for bucket in buckets]


def line_chart(series: Sequence[Series], *, share: bool = False) -> str:
    """Lines over steps, each from 0 or from its lowest value below. share: values are between 0 and 1, in percent."""
    shown = [(one, points) for one in series if (points := thin(one))]
    if not shown:
        return ""

    def draw(axes: "matplotlib.axes.Axes") -> None:
        for one, points in shown:
            _line(axes, one, points, alone=len(shown) == 1)
        lowest = min(y for _, points in shown for _, y in points)
        highest = max(y for _, points in shown for _, y in points)
        room = 0.06 * (highest - min(0.0, lowest)) or 1.0
        axes.set_ylim(lowest - room if lowest < 0 else 0.0, highest + room)
        axes.set_xlim(0, max(1.0, *(x for _, points in shown for x, _ in points)))
        axes.set_xlabel("step")
        axes.xaxis.set_major_locator(_ticks(6, integer=True))
        axes.yaxis.grid(True)
        axes.yaxis.set_major_locator(_ticks(5))
        axes.yaxis.set_major_formatter(_percent if share else _short)

    return _svg(draw, width=5.4, height=2.3)


def _line(axes: "matplotlib.axes.Axes", one: Series, points: Sequence[tuple[float, float]], *, alone: bool) -> None:
    xs, ys = zip(*points, strict=True)
    plot = partial(axes.plot, color=one.colour, solid_joinstyle="round")
    if len(points) > SMOOTHED and not one.peaks:
        plot(xs, ys, linewidth=0.8, alpha=0.4)
        ys = smooth(ys, len(points) // SMOOTHED)
    marker = "o" if len(points) < 8 else None
    plot(xs, ys, linewidth=1.8 if alone else 1.5, marker=marker, markersize=3.5)


def _svg(draw: "Callable[[matplotlib.axes.Axes], None]", *, width: float, height: float) -> str:
    """An SVG element of that size in inches."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)
    return element(file.getvalue())


def element(svg: str) -> str:
    """The svg element of a file, for use several times in a page: without the parts that only a file needs, and without
    unreferenced ids."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', body))
    names = {name for pair in used for name in pair if name}
    for colour, name in NAMED.items():
        body = body.replace(f": {colour}", f": var({name})")
    body = re.sub(r": (#[0-9a-f]{6})", r": color-mix(in srgb, \1, white var(--lift))", body)
    body = re.sub(r' id="([^"]+)"', lambda found: found[0] if found[1] in names else "", body)
    return re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', _OPENING, body, count=1).strip()


_OPENING = (
    r'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="\1" role="img">'
)


def _ticks(count: int, **how: bool) -> "matplotlib.ticker.MaxNLocator":
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count, steps=[1, 2, 2.5, 5, 10], **how)


def _short(value: float, _: object) -> str:
    """Formats an axis label: 12,000 and 0.0005 and 2e-06."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(value: float, _: object) -> str:
    return f"{100 * value:.3g} %"


@dataclass(frozen=True, slots=True)
class Curve:
    """One line: a metric and its label. A metric that ends in "/" stands for all metrics with that prefix, one line
    each."""

    metric: str
    label: str
    colour: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A chart of a stage, if any of its metrics was recorded. share: they are shares of a whole."""

    title: str
    stage: str
    curves: tuple[Curve, ...]
    share: bool = False


@dataclass(frozen=True, slots=True)
class Key:
    """The name of a line, in its colour."""

    label: str
    colour: str


@dataclass(frozen=True, slots=True)
class Chart:
    title: str
    svg: str
    """Empty if it could not be drawn."""
    keys: tuple[Key, ...]
    """Empty for a chart of one line."""


@dataclass(frozen=True, slots=True)
class Charts:
    title: str
    charts: tuple[Chart, ...]


LEARNING = (
    Plan("Reward", "rl", (Curve("reward", "all", RL), Curve("reward/", "", ""))),
    Plan(
        "Held-out tasks right, greedily",
        "rl",
        (Curve("eval/pass_at_1", "all", RL),),
        share=True,
    ),
    Plan("Entropy of the policy (nats a token)", "rl", (Curve("entropy", "entropy", RL),)),
    Plan("KL to the sampling policy (nats a token)", "rl", (Curve("kl_rollout", "KL", RL),)),
    Plan(
        "Tokens of an episode",
        "rl",
        (Curve("length_p50", "median", RL), Curve("length_p90", "90 %", AMBER), Curve("length_p99", "99 %", RED)),
    ),
    Plan(
        "Clipped, truncated, rejected",
        "rl",
        (
            Curve("clip_fraction", "tokens clipped", RL),
            Curve("truncated_weight_fraction", "weights capped", VIOLET),
            Curve("truncated_fraction", "episodes truncated", AMBER),
            Curve("rejected_fraction", "groups rejected", GREY),
        ),
        share=True,
    ),
    Plan("Tokens sampled a second", "rl", (Curve("tokens_s", "tokens", RL),)),
    Plan(
        "Staleness of tokens (versions)",
        "rl",
        (Curve("staleness_max", "max", AMBER), Curve("staleness_mean", "mean", RL)),
    ),
    Plan(
        "Log-prob difference, engine and learner",
        "rl",
        (Curve("sync_logprob_max_diff", "after a sync", AMBER), Curve("logprob_max_diff", "of trained tokens", RL)),
    ),
    Plan("Gradient norm", "rl", (Curve("grad_norm", "norm", RL),)),
)
TUNING = (
    Plan("Loss", "sft", (Curve("loss", "loss", SFT),)),
    Plan("Entropy of the policy (nats a token)", "sft", (Curve("entropy", "entropy", SFT),)),
    Plan("Learning rate", "sft", (Curve("lr", "rate", SFT),)),
    Plan("Tokens trained a second", "sft", (Curve("tokens_s", "tokens", SFT),)),
)


def charts(metrics: Sequence[Record], boundary: SinkBoundary) -> list[Charts]:
    """Groups of charts that have data. A chart that fails within the boundary has no picture."""
    groups = (("Reinforcement", LEARNING), ("Fine-tuning", TUNING))
    drawn = {
        title: [
            boundary.part(f"the picture {plan.title!r}", partial(_chart, plan, metrics), Chart(plan.title, "", ()))
            for plan in plans
        ]
        for title, plans in groups
    }
    found = {title: tuple(filter(None, of_group)) for title, of_group in drawn.items()}
    return [Charts(title, of_group) for title, of_group in found.items() if of_group]


def _chart(plan: Plan, metrics: Sequence[Record]) -> Chart | None:
    """The chart; None if it has no data."""
    records = [record for record in metrics if record["stage"] == plan.stage]
    series = [one for curve in plan.curves for one in _series(curve, records)]
    if not (svg := line_chart(series, share=plan.share)):
        return None
    keys = tuple(Key(one.label, one.colour) for one in series)
    return Chart(plan.title, svg, keys if len(keys) > 1 else ())


def _series(curve: Curve, records: Sequence[Record]) -> Iterator[Series]:
    """A curve's lines that have points."""
    if not curve.metric.endswith("/"):
        if points := _points(curve.metric, records):
            yield Series(curve.label, curve.colour, points, peaks="_max" in curve.metric)
        return
    names = sorted({name for record in records for name in record if name.startswith(curve.metric)})
    for name, colour in zip(names, PARTS, strict=False):  # more than these cannot be told apart
        yield Series(name.removeprefix(curve.metric), colour, _points(name, records))


def _points(metric: str, records: Sequence[Record]) -> list[tuple[float, float]]:
    return [(record["step"], record[metric]) for record in records if isinstance(record.get(metric), int | float)]
