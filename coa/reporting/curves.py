"""The curves of a run's page: a table from metrics to charts, and a function that draws those that have data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from coa.reporting.boundary import SinkBoundary
from coa.reporting.metrics import Record
from coa.reporting.plots import Series, line_chart

GREY, BLUE, AMBER, GREEN, VIOLET, RED = "#8794a8", "#2463c9", "#c77a0a", "#157a3d", "#7a3fc0", "#b3362b"
SFT, RL = GREY, BLUE
"""The colours of the two models, the same in every plot and table."""
PARTS = (AMBER, GREEN, VIOLET, RED, "#0f766e", "#9a3fa8", "#4a5a4c", "#1d5fc4")
"""The colours of categories, such as families or reasons."""


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
