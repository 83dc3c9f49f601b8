"""A run's page: one self-contained HTML file. Every section is a function of the report; what is missing is a dash."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from coa.grammar import parse
from coa.metrics import Record
from coa.plots import Interval, Series, interval_chart, line_chart
from coa.readable import DASH, duration, look_up, number, percent
from coa.report_style import RL, ROLE_COLOURS, SFT, STYLE
from coa.types import Task

AMBER = "#c77a0a"

# Title, stage, and the lines of each training curve: (key of the metrics record, label, colour). A key with "_max"
# is a series of maxima.
CURVES = (
    ("SFT loss", "sft", (("loss", "loss", SFT),)),
    ("RL reward", "rl", (("reward", "reward", RL),)),
    ("Staleness of tokens (versions)", "rl", (("staleness_max", "max", AMBER), ("staleness_mean", "mean", RL))),
    (
        "Log-prob difference, engine and learner",
        "rl",
        (("sync_logprob_max_diff", "after a sync", AMBER), ("logprob_max_diff", "of trained tokens", RL)),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A trajectory to be shown."""

    task: Task
    made_by: str
    """Which model: "SFT", "RL"."""
    text: str
    """The chain as tag text."""
    correct: bool


def change(before: float | None, after: float | None, *, coloured: bool = True) -> str:
    """The difference of two shares in points; coloured by its sign, where more is better."""
    if before is None or after is None:
        return DASH
    points = round(100 * (after - before), 1)
    kind = "up" if points > 0 else "down" if points < 0 else ""
    text = f"{points:+.1f}".replace("-", "\u2212")
    return f'<span class="{kind}">{text}</span>' if coloured and kind else text


def page(title: str, report: Mapping[str, Any], metrics: Sequence[Record], examples: Sequence[Example]) -> str:
    sections = (
        headline(report),
        _section("Training", curves(metrics)),
        _section("By task family", families(report)),
        _section("Strategies before and after RL", strategies(report)),
        _section("Cost of a success", costs(report)),
        _section("How the run went", course(report)),
        _section("Sample trajectories", "".join(map(trajectory, examples))),
    )
    tasks = look_up(report, "evaluation.tasks_sha256")
    total = look_up(report, "seconds.total")
    known = [f"total time {duration(total)}"] if total is not None else []
    known += [f"evaluation tasks {escape(str(tasks)[:12])}"] if tasks else []
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f'<body><main><h1>{escape(title)}</h1><p class="sub">{" · ".join(known)}</p>{"".join(sections)}'
        "</main></body></html>\n"
    )


def headline(report: Mapping[str, Any]) -> str:
    tiles = []
    for label, kind in (("Greedy pass@1", "greedy"), ("Sampled pass@1", "pass_at_1")):
        before, after = (look_up(report, f"evaluation.{model}.{kind}.mean") for model in ("sft", "rl"))
        detail = "after SFT" if after is None else f"{change(before, after)} points over SFT"
        tiles.append((label, percent(before if after is None else after), detail))
    tiles.append(
        (
            "Tokens saved per success",
            percent(look_up(report, "cost.token_reduction")),
            "against the multi-agent system",
        )
    )
    errors = [percent(look_up(report, f"evaluation.{model}.format_errors")) for model in ("sft", "rl")]
    tiles.append(
        ("Format errors", *((errors[0], "after SFT") if errors[1] == DASH else (errors[1], f"{errors[0]} after SFT")))
    )
    shown = "".join(
        f'<div class="tile"><div class="label">{label}</div><div class="big">{big}</div>'
        f'<div class="detail">{detail}</div></div>'
        for label, big, detail in tiles
    )
    return f'<div class="tiles">{shown}</div>{intervals(report)}'


def intervals(report: Mapping[str, Any]) -> str:
    rows = []
    for kind, key in (("greedy", "greedy"), ("sampled", "pass_at_1")):
        for model, colour in (("sft", SFT), ("rl", RL)):
            estimate = look_up(report, f"evaluation.{model}.{key}")
            if estimate:
                rows.append(Interval(f"{model.upper()}, {kind}", colour, estimate["mean"], *estimate["ci95"]))
    if not rows:
        return ""
    counts = {
        look_up(report, f"evaluation.{model}.{key}.n") for model in ("sft", "rl") for key in ("greedy", "pass_at_1")
    }
    n = ", ".join(number(count) for count in sorted(count for count in counts if count))
    return f'{interval_chart(rows)}<p class="note">95 % intervals (Wilson) over {n} tasks.</p>'


def curves(metrics: Sequence[Record]) -> str:
    charts = []
    for title, stage, lines in CURVES:
        series = [
            Series(
                label,
                colour,
                [(r["step"], r[key]) for r in metrics if r["stage"] == stage and key in r],
                peaks="_max" in key,
            )
            for key, label, colour in lines
        ]
        drawn = [one for one in series if one.points]
        if drawn:
            charts.append(f"<div><h3>{escape(title)}</h3>{line_chart(drawn)}</div>")
    return f'<div class="grid2">{"".join(charts)}</div>' if charts else ""


def families(report: Mapping[str, Any]) -> str:
    rows = []
    for name in _names(report, "evaluation.sft.families", "evaluation.rl.families"):
        before = look_up(report, f"evaluation.sft.families.{name}") or {}
        after = look_up(report, f"evaluation.rl.families.{name}") or {}
        greedy, sampled = ([_mean(side.get(key)) for side in (before, after)] for key in ("greedy", "pass_at_1"))
        saved = percent(look_up(report, f"cost.families.{name}.token_reduction"))
        rows.append((name, *map(percent, greedy), change(*greedy), *map(percent, sampled), change(*sampled), saved))
    heads = ("family", "SFT greedy", "RL greedy", "points", "SFT sampled", "RL sampled", "points", "tokens saved")
    return _table(heads, rows)


def strategies(report: Mapping[str, Any]) -> str:
    rows = []
    for name in _names(report, "evaluation.sft.strategies", "evaluation.rl.strategies"):
        row = [name]
        for strategy in ("careful", "lazy"):
            sides = [look_up(report, f"evaluation.{model}.strategies.{name}.{strategy}") for model in ("sft", "rl")]
            row += [*map(percent, sides), change(*sides, coloured=False)]
        rows.append(row)
    return _table(("family", "careful, SFT", "careful, RL", "points", "lazy, SFT", "lazy, RL", "points"), rows)


def costs(report: Mapping[str, Any]) -> str:
    keys = ("tokens_per_success", "tool_calls_per_success", "successes", "n")
    rows = [
        (label, *(number(look_up(report, f"cost.{side}.{key}")) for key in keys))
        for side, label in (("multi_agent", "multi-agent system"), ("afm", "agent foundation model"))
        if look_up(report, f"cost.{side}") is not None
    ]
    return _table(("", "tokens per success", "tool calls per success", "successes", "attempts"), rows)


def course(report: Mapping[str, Any]) -> str:
    """Two columns: what each stage did, and how the parts of RL worked together."""
    stages = []
    for name in ("sft", "rl"):
        if stage := look_up(report, f"stages.{name}"):
            stages.append((name.upper(), number(stage["steps"]), number(stage["samples"]), duration(stage["seconds"])))
    left = f"{_table(('stage', 'steps', 'samples', 'time'), stages)}<br>{_distillation(report)}"
    right = _reinforcement(report)
    return f'<div class="grid2"><div>{left}</div><div>{right}</div></div>' if stages or right else ""


def _distillation(report: Mapping[str, Any]) -> str:
    distill = look_up(report, "stages.distill")
    if not distill:
        return ""
    rows = [("transcripts", number(distill["transcripts"])), ("kept", number(distill["kept"]))]
    return _table(("distillation", ""), rows + _dropped(distill["dropped"]))


def _reinforcement(report: Mapping[str, Any]) -> str:
    if not look_up(report, "rl"):
        return ""
    mean, most = (number(look_up(report, f"rl.staleness_{kind}")) for kind in ("mean", "max"))
    rows = [
        ("engine busy", percent(look_up(report, "rl.busy.engine"))),
        ("learner busy", percent(look_up(report, "rl.busy.learner"))),
        ("overlap", number(look_up(report, "rl.overlap"))),
        ("staleness, mean / max", f"{mean} / {most}"),
        ("largest log-prob difference", number(look_up(report, "rl.logprob_max_diff"))),
        ("weight syncs", number(look_up(report, "rl.syncs"))),
        ("trajectories", number(look_up(report, "rl.trajectories"))),
        ("engine restarts", number(look_up(report, "rl.engine_restarts"))),
    ]
    return _table(("reinforcement", ""), rows + _dropped(look_up(report, "rl.dropped")))


def trajectory(example: Example) -> str:
    """One chain, its tags coloured by role; text that is no chain is shown as it is."""
    parsed = parse(example.text)
    spans = "".join(_block(span.tag, ROLE_COLOURS[span.tag], span.tag, span.text) for span in parsed.chain)
    if parsed.fault is not None:
        spans += _block("", "#b3362b", parsed.fault, example.text[-400:])
    mark = '<span class="mark up">right</span>' if example.correct else '<span class="mark down">wrong</span>'
    label = f"{escape(example.made_by)} · {escape(example.task.family)}"
    accepted = f'<p class="note">Accepted: {escape(" | ".join(example.task.answers))}</p>'
    return (
        f"<details open><summary>{mark}<b>{label}</b> &nbsp;{escape(example.task.question)}</summary>"
        f'<div class="chain">{spans}{accepted}</div></details>'
    )


def _block(kind: str, colour: str, name: str, text: str) -> str:
    return (
        f'<div class="span {kind}" style="--role:{colour}"><b>{escape(name)}</b><pre>{escape(text.strip())}</pre></div>'
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML; the first of a row is plain text. Nothing at all without rows."""
    if not rows:
        return ""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        f"<tr><td>{escape(row[0])}</td>{''.join(f'<td>{cell}</td>' for cell in row[1:])}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _dropped(reasons: Mapping[str, int] | None) -> list[tuple[str, str]]:
    return [(f"dropped: {reason.replace('_', ' ')}", number(count)) for reason, count in (reasons or {}).items()]


def _names(report: Mapping[str, Any], *paths: str) -> list[str]:
    """The keys at several places, in order, each once."""
    return list(dict.fromkeys(name for path in paths for name in look_up(report, path) or {}))


def _mean(estimate: Any) -> float | None:
    """Families may hold whole estimates or bare means."""
    return estimate["mean"] if isinstance(estimate, Mapping) else estimate
