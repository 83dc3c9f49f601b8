"""A run's results: report.json, whose keys are a contract, and the page report.html.

The page is one self-contained HTML file, a function of the report; missing values are shown as a dash.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from coa.agent.grammar import parse
from coa.json_object import Json, JsonView
from coa.reporting.boundary import SinkBoundary
from coa.reporting.curves import RED, RL, SFT, charts
from coa.reporting.metrics import Record
from coa.reporting.readable import DASH, duration, look_up, number, percent
from coa.storage.files import write_atomically
from coa.storage.jsonl import to_json
from coa.tasks.samples import result_name
from coa.time_accounts import added, shares
from coa.types import Task

if TYPE_CHECKING:
    import jinja2

ROLE_COLOURS = {
    "think": "#667085",
    "plan": "#1d5fc4",
    "wiki_search": "#7a3fc0",
    "web_search": "#7a3fc0",
    "crawl_page": "#9a3fa8",
    "code": "#7a3fc0",
    "observation": "#4a5a4c",
    "reflection": "#b2570a",
    "suggested_answer": "#0f766e",
    "double_check": "#a03a4a",
    "answer": "#157a3d",
}
OTHER_ROLE = "#7a3fc0"
"""The colour of tags of a user's own profile, most of which are tools."""

PAGE = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A trajectory to be shown."""

    task: Task
    made_by: str
    """The model that made it: "SFT" or "RL"."""
    text: str
    """The chain as tag text."""
    correct: bool


@dataclass(frozen=True, slots=True)
class Marked:
    """A text with a class of the style sheet ("up", "down", or none), and its interval."""

    text: str
    kind: str = ""
    interval: str = ""


Cell = str | Marked


@dataclass(frozen=True, slots=True)
class Table:
    heads: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """An estimate between 0 and 1 with its interval, on a scale of 100 %."""

    label: str
    colour: str
    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Tile:
    label: str
    value: str
    detail: Cell
    more: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    table: Table
    notes: tuple[str, ...] = ()
    """Sentences below the table."""


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


def page(
    title: str,
    report: JsonView,
    metrics: Sequence[Record],
    examples: Sequence[Example],
    boundary: SinkBoundary,
) -> str:
    """boundary: of parts that the page can do without."""
    tasks, total = look_up(report, "evaluation.tasks_sha256"), look_up(report, "seconds.total")
    known = [f"total time {duration(total)}"] if total is not None else []
    known += [f"evaluation tasks {str(tasks)[:12]}"] if tasks else []
    return _template().render(
        style=(files(__package__ or "coa.reporting") / "templates" / "report.css").read_text(encoding="utf-8"),
        title=title,
        known=known,
        tiles=list(tiles(report)),
        alarms=list(alarms(report)),
        intervals=intervals(report),
        charts=charts(metrics, boundary),
        sections=(
            Section("By task family", families(report)),
            Section("Strategies before and after RL", strategies(report)),
            Section("Cost of a success", costs(report)),
            Section("Where the time of RL went", times(report), bottleneck(report)),
        ),
        course=course(report),
        trajectories=[
            shown
            for one in examples
            if (shown := boundary.part(f"the page's example of {one.task.id}", partial(trajectory, one), None))
        ],
    )


@cache
def _template() -> "jinja2.Template":
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("coa.reporting"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html")


def change(before: float | None, after: float | None, *, coloured: bool = True) -> Cell:
    """The difference of two shares in percentage points; colored by its sign if more is better."""
    if before is None or after is None:
        return DASH
    points = round(100 * (after - before), 1)
    kind = "up" if points > 0 else "down" if points < 0 else ""
    text = _points(after - before)
    return Marked(text, kind) if coloured and kind else text


def _points(share: float) -> str:
    return f"{round(100 * share, 1):+.1f}".replace("-", "\u2212")


def gain(report: JsonView, kind: str, family: str | None = None) -> Cell:
    """The gain of RL over SFT in percentage points, with its interval if the report has it: task by task."""
    path = ("evaluation.gain",) if family is None else ("evaluation.gain.families", family)
    if (found := look_up(report, *path, kind)) is None:
        below = () if family is None else ("families", family)
        return change(*(_mean(look_up(report, f"evaluation.{model}", *below, kind)) for model in ("sft", "rl")))
    points, low, high = (_points(value) for value in (found["mean"], *found["ci95"]))
    sign = "up" if found["ci95"][0] > 0 else "down" if found["ci95"][1] < 0 else ""
    return Marked(points, sign, f"[{low}, {high}]")


def tiles(report: JsonView) -> Iterator[Tile]:
    """The most important figures, as far as they were measured."""
    for label, kind in (("Greedy pass@1", "greedy"), ("Sampled pass@1", "pass_at_1")):
        before, after = (look_up(report, f"evaluation.{model}.{kind}.mean") for model in ("sft", "rl"))
        if after is not None:
            yield Tile(label, percent(after), gain(report, kind), " points over SFT" if before is not None else "")
        elif before is not None:
            yield Tile(label, percent(before), "after SFT")
    if (saved := look_up(report, "cost.token_reduction")) is not None:
        yield Tile("Tokens saved per success", percent(saved), "against the multi-agent system")
    before, after = (look_up(report, f"evaluation.{model}.format_errors") for model in ("sft", "rl"))
    if after is not None:
        yield Tile("Format errors", percent(after), f"{percent(before)} after SFT" if before is not None else "")
    elif before is not None:
        yield Tile("Format errors", percent(before), "after SFT")


def alarms(report: JsonView) -> Iterator[str]:
    """Sentences about what the figures do not show: families of tasks that were not trained, and groups that failed."""
    for one in look_up(report, "rl.families_vanished") or []:
        yield f"The family {one['family']} was not trained {_lasting(one)}: {one['why']}."
    for one in look_up(report, "rl.groups_failing") or []:
        yield f"Most groups failed {_lasting(one)}: {one['why']}."


def _lasting(spell: JsonView) -> str:
    return f"from version {spell['since']} " + ("on" if spell["until"] is None else f"to {spell['until']}")


def intervals(report: JsonView) -> Json | None:
    """The estimates of both models, and the number of tasks behind them."""
    rows, counts = [], set()
    for kind, key in (("greedy", "greedy"), ("sampled", "pass_at_1")):
        for model, colour in (("base", SFT), ("sft", SFT), ("rl", RL)):
            if estimate := look_up(report, f"evaluation.{model}.{key}"):
                name = "Before" if model == "base" else model.upper()
                rows.append(Bar(f"{name}, {kind}", colour, estimate["mean"], *estimate["ci95"]))
                counts.add(estimate["n"])
    if not rows:
        return None
    return {"bars": rows, "tasks": ", ".join(map(number, sorted(counts)))}


def families(report: JsonView) -> Table:
    rows = []
    for name in _names(report, "evaluation.sft.families", "evaluation.rl.families"):
        before = look_up(report, "evaluation.sft.families", name) or {}
        after = look_up(report, "evaluation.rl.families", name) or {}
        row: list[Cell] = [result_name(name, before or after)]
        for key in ("greedy", "pass_at_1"):
            row += [*(percent(_mean(side.get(key))) for side in (before, after)), gain(report, key, name)]
        rows.append((*row, percent(look_up(report, "cost.families", name, "token_reduction"))))
    heads = ("family", "SFT greedy", "RL greedy", "points", "SFT sampled", "RL sampled", "points", "tokens saved")
    return _measured(Table(heads, tuple(rows)))


def strategies(report: JsonView) -> Table:
    """The share of each family's episodes that took each strategy, if the world measures strategies."""
    paths = [f"evaluation.{model}.strategies" for model in ("sft", "rl")]
    families = _names(report, *paths)
    shares = [look_up(report, path, family) or {} for family in families for path in paths]
    names = list(dict.fromkeys(name for one in shares for name in one))
    rows = []
    for family in families:
        row: list[Cell] = [family]
        for name in names:
            sides = [look_up(report, path, family, name) for path in paths]
            row += [*map(percent, sides), change(*sides, coloured=False)]
        rows.append(tuple(row))
    heads = ("family", *(head for name in names for head in (f"{name}, SFT", f"{name}, RL", "points")))
    return Table(heads, tuple(rows))


def costs(report: JsonView) -> Table:
    keys = ("tokens_per_success", "tool_calls_per_success", "successes", "n")
    rows = tuple(
        (label, *(number(look_up(report, f"cost.{side}.{key}")) for key in keys))
        for side, label in (("multi_agent", "multi-agent system"), ("afm", "agent foundation model"))
        if look_up(report, f"cost.{side}") is not None
    )
    return Table(("", "tokens per success", "tool calls per success", "successes", "attempts"), rows)


def times(report: JsonView) -> Table:
    """Shares of engines' and learners' time by activity."""
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (f"{who}: {state.replace('_', ' ')}", percent(share))
        for who, spent in (
            ("engines", added(look_up(report, "rl.time.engines") or [])),
            ("learners", look_up(report, "rl.time.learner") or {}),
        )
        for state, share in sorted(shares(spent).items(), key=lambda one: -one[1])
    )
    return Table(("", "share"), rows)


def bottleneck(report: JsonView) -> tuple[str, ...]:
    """Lines that name what the loop waited for, and the setting that would help."""
    return tuple(filter(None, (look_up(report, f"bottleneck.{key}") for key in ("sentence", "advice"))))


def course(report: JsonView) -> list[list[Table]]:
    """Two columns: what each stage did, and how the parts of RL worked together."""
    left, right = [_stages(report), _distillation(report)], [_reinforcement(report)]
    return [left, right] if any(table.rows for table in (*left, *right)) else []


def _stages(report: JsonView) -> Table:
    rows = tuple(
        (name.upper(), number(stage["steps"]), number(stage["samples"]), duration(stage["seconds"]))
        for name in ("sft", "rl")
        if (stage := look_up(report, f"stages.{name}"))
    )
    return Table(("stage", "steps", "samples", "time"), rows)


def _distillation(report: JsonView) -> Table:
    rows: list[tuple[Cell, ...]] = []
    if distill := look_up(report, "stages.distill"):
        rows += [("transcripts", number(distill["transcripts"])), ("kept", number(distill["kept"]))]
        rows += _dropped(distill["dropped"])
    return Table(("distillation", ""), tuple(rows))


def _reinforcement(report: JsonView) -> Table:
    rows: list[tuple[Cell, ...]] = []
    if look_up(report, "rl"):
        mean, most = (number(look_up(report, f"rl.staleness_{kind}")) for kind in ("mean", "max"))
        rows += [
            ("engine busy", percent(look_up(report, "rl.busy.engine"))),
            ("learner busy", percent(look_up(report, "rl.busy.learner"))),
            ("overlap", number(look_up(report, "rl.overlap"))),
            ("staleness, mean / max", f"{mean} / {most}"),
            ("largest log-prob difference", number(look_up(report, "rl.logprob_max_diff"))),
            ("weight syncs", number(look_up(report, "rl.syncs"))),
            ("trajectories", number(look_up(report, "rl.trajectories"))),
            ("engine restarts", number(look_up(report, "rl.engine_restarts"))),
            *_dropped(look_up(report, "rl.dropped")),
        ]
    return Table(("reinforcement", ""), tuple(rows))


def trajectory(example: Example) -> Json:
    """One chain, its tags coloured by role; text that is no chain is shown as it is."""
    parsed = parse(example.text)
    spans = [_span(span.tag, ROLE_COLOURS.get(span.tag, OTHER_ROLE), span.tag, span.text) for span in parsed.chain]
    if parsed.fault is not None:
        spans.append(_span("", RED, parsed.fault, example.text[-400:]))
    return {
        "correct": example.correct,
        "made_by": example.made_by,
        "family": example.task.family,
        "question": example.task.question,
        "accepted": " | ".join(example.task.answers),
        "spans": spans,
    }


def _span(kind: str, colour: str, name: str, text: str) -> dict[str, str]:
    return {"kind": kind, "colour": colour, "name": name, "text": text.strip()}


def _dropped(reasons: Mapping[str, int] | None) -> list[tuple[Cell, ...]]:
    return [(f"dropped: {reason.replace('_', ' ')}", number(count)) for reason, count in (reasons or {}).items()]


def _measured(table: Table) -> Table:
    """The table without columns in which nothing was measured."""
    columns = zip(table.heads, *table.rows, strict=True)
    kept = [column for column in columns if any(cell != DASH for cell in column[1:])]
    heads, *rows = zip(*kept, strict=True) if kept else [()]
    return Table(heads, tuple(rows))


def _names(report: JsonView, *paths: str) -> list[str]:
    """The keys at several places, in order, each once."""
    return list(dict.fromkeys(name for path in paths for name in look_up(report, path) or {}))


def _mean(estimate: JsonView | float | None) -> float | None:
    """Families may hold whole estimates or bare means."""
    return estimate["mean"] if isinstance(estimate, Mapping) else estimate
