import json
import math
import re
from collections.abc import Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from coa.reporting import page as page_module
from coa.reporting.boundary import SinkBoundary
from coa.reporting.curves import Series, charts, element, line_chart, smooth, thin
from coa.reporting.metrics import read_metrics
from coa.reporting.page import Example, Marked, change, write_report
from coa.reporting.readable import duration, look_up, number, percent
from coa.storage.jsonl import write_lines
from coa.types import Task

REPORT = {
    "stages": {
        "distill": {"transcripts": 100, "kept": 60, "dropped": {"wrong_answer": 40}},
        "sft": {"steps": 300, "seconds": 75.0, "samples": 9600},
        "rl": {"steps": 100, "seconds": 3700.0, "samples": 12800},
    },
    "evaluation": {
        "sft": {
            "greedy": {"mean": 0.5, "ci95": [0.45, 0.55], "n": 600},
            "format_errors": 0.031,
            "families": {"calc": {"greedy": 0.62, "pass_at_1": {"mean": 0.5, "ci95": [0.4, 0.6], "n": 9}}},
            "strategies": {"calc": {"careful": 0.31, "lazy": 0.52}},
        },
        "rl": {
            "greedy": {"mean": 0.713, "ci95": [0.67, 0.75], "n": 600},
            "format_errors": 0.004,
            "families": {"calc": {"greedy": 0.78, "pass_at_1": 0.7}},
            "strategies": {"calc": {"careful": 0.82, "lazy": 0.11}},
        },
        "tasks_sha256": "9f2c51d0a8b7e644",
    },
    "cost": {
        "multi_agent": {"tokens_per_success": 8123.4, "tool_calls_per_success": 7.31, "successes": 4, "n": 6},
        "afm": {"tokens_per_success": 1287.9, "tool_calls_per_success": 3.02, "successes": 5, "n": 6},
        "token_reduction": 0.8415,
        "families": {"calc": {"token_reduction": 0.81}},
    },
    "rl": {"overlap": 0.83, "busy": {"engine": 0.91}, "staleness_max": 2, "staleness_mean": 0.87, "dropped": {}},
    "seconds": {"total": 3775.0},
}
TASK = Task(id="w", question="Is 1 < 2 ?", answers=("yes",), profile="web", family="web")


def written(folder: Path, report: dict[str, Any], **others: Any) -> str:
    write_report(folder, report, **{"metrics": [], **others})
    return (folder / "report.html").read_text(encoding="utf-8")


class Balance(HTMLParser):
    """Fails on an element that is closed wrongly or left open."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass


def test_the_report_is_written_as_it_is(tmp_path: Path) -> None:
    written(tmp_path, REPORT)
    assert json.loads((tmp_path / "report.json").read_text()) == REPORT
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]


def test_the_page_shows_the_numbers(tmp_path: Path) -> None:
    page = written(tmp_path, REPORT)
    for text in ("71.3 %", "+21.3", "84.2 %", "8\u202f123", "1 h 02 min", "9f2c51d0a8b7", "+51.0", "\u221241.0"):
        assert text in page


def test_the_page_is_whole_small_and_loads_nothing(tmp_path: Path) -> None:
    metrics = [{"stage": "rl", "step": step, "reward": step / 9, "staleness_max": 1} for step in range(400)]
    page = written(tmp_path, REPORT, metrics=metrics)
    Balance(page)
    assert not re.search(r'(src|href)=(?!"#)|@import|url\((?!#)|<script', page)
    assert page.count("<svg") == 2
    assert len(page) < 100_000
    assert page == written(tmp_path, REPORT, metrics=metrics), "the same run is the same page"


@pytest.mark.parametrize("missing", ["stages", "evaluation", "cost", "rl", "seconds"])
def test_a_part_of_a_report_still_makes_a_page(tmp_path: Path, missing: str) -> None:
    Balance(written(tmp_path, {key: value for key, value in REPORT.items() if key != missing}))


def test_an_empty_report_makes_a_page(tmp_path: Path) -> None:
    Balance(written(tmp_path, {}))


def test_a_trajectory_shows_its_roles_and_no_raw_html(tmp_path: Path) -> None:
    example = Example(task=TASK, made_by="RL", text="<plan> a <b> c</plan><answer> yes</answer>", correct=True)
    page = written(tmp_path, {}, examples=[example])
    Balance(page)
    assert '<b>plan</b><pre dir="auto">a &lt;b&gt; c</pre>' in page
    assert "Is 1 &lt; 2 ?" in page
    assert "right</span>" in page


def test_text_that_is_no_chain_is_shown_with_its_fault(tmp_path: Path) -> None:
    example = Example(task=TASK, made_by="SFT", text="<plan> a</plan><answer> 7", correct=False)
    page = written(tmp_path, {}, examples=[example])
    assert '<b>a tag left open</b><pre dir="auto">&lt;plan&gt; a&lt;/plan&gt;&lt;answer&gt; 7</pre>' in page


def unmeasured(value: Any) -> Any:
    """The same with NaN in the place of each number with a fraction."""
    if isinstance(value, dict):
        return {name: unmeasured(one) for name, one in value.items()}
    return [*map(unmeasured, value)] if isinstance(value, list) else math.nan if isinstance(value, float) else value


def test_numbers_that_json_has_not_are_null_in_the_report_and_dashes_on_the_page(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    write_lines(metrics, [{"stage": "rl", "step": step, "reward": math.inf, "entropy": 1 / step} for step in (1, 2)])
    said: list[str] = []
    report = unmeasured(REPORT) | {"evaluation": REPORT["evaluation"]}  # rates are of counts
    page = written(tmp_path, report, metrics=read_metrics(metrics), boundary=SinkBoundary(said.append))
    assert said == []
    assert page.count("<svg") == 1, "of the entropy"
    found = json.loads((tmp_path / "report.json").read_text(), parse_constant=pytest.fail)
    assert (found["rl"]["overlap"], found["rl"]["staleness_max"]) == (None, 2)


def test_values_are_formatted_for_reading() -> None:
    assert [number(v) for v in (None, 7, 12345, 0.8349, 4.1e-6, 8123.4)] == [
        "-",
        "7",
        "12\u202f345",
        "0.835",
        "4.1e-06",
        "8\u202f123",
    ]
    assert [percent(None), percent(0.7134)] == ["-", "71.3 %"]
    assert [duration(v) for v in (None, 9, 75, 3700)] == ["-", "9 s", "1 min 15 s", "1 h 01 min"]
    assert [change(None, 0.5), change(0.5, 0.5), change(0.5, 0.4, coloured=False)] == ["-", "+0.0", "\u221210.0"]
    assert change(0.5, 0.4) == Marked("\u221210.0", "down")
    assert look_up(REPORT, "cost.afm.n") == 6
    assert look_up(REPORT, "cost.nobody.n") is None


def test_a_family_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    part = {"greedy": {"mean": 0.3125}, "pass_at_1": {"mean": 0.25}}
    evaluation = {"families": {"math.train": part}, "strategies": {"math.train": {"lazy": 0.4375}}}
    costs = {"families": {"math.train": {"token_reduction": 0.8125}}}
    page = written(tmp_path, {"evaluation": {"sft": evaluation, "rl": evaluation}, "cost": costs})
    for text in ("31.2 %", "25.0 %", "43.8 %", "81.2 %"):
        assert text in page


def test_what_was_not_measured_is_not_shown_and_gains_have_their_intervals(tmp_path: Path) -> None:
    page = written(tmp_path, REPORT)
    assert "Sampled pass@1" not in page, "nothing is known of it"
    greedy = {"greedy": {"mean": 0.5, "ci95": [0.4, 0.6], "n": 9}}
    gain = {"mean": 0.981, "ci95": [0.878, 0.997], "n": 54}
    side = {**greedy, "families": {"calc": greedy}}
    page = written(tmp_path, {"evaluation": {"sft": side, "rl": side, "gain": {"greedy": gain, "families": {}}}})
    assert '<span class="up">+98.1</span> <span class="interval">[+87.8, +99.7]</span> points over SFT' in page
    assert "sampled" not in page
    assert "Format errors" not in page
    assert "tokens saved" not in page.lower()


def test_a_family_that_was_not_trained_is_named_with_the_reason(tmp_path: Path) -> None:
    gone = {"family": "web", "why": "its last 3 groups came to nothing", "since": 4, "until": None}
    page = written(tmp_path, {"rl": {"families_vanished": [gone, {**gone, "family": "code", "until": 9}]}})
    assert "The family web was not trained from version 4 on: its last 3 groups came to nothing." in page
    assert "The family code was not trained from version 4 to 9: " in page


def test_a_time_in_which_most_groups_failed_is_named_with_the_last_failure(tmp_path: Path) -> None:
    spell = {"why": "ToolDown: code: <none>", "since": 4, "until": 9}
    page = written(tmp_path, {"rl": {"groups_failing": [spell]}})
    assert "Most groups failed from version 4 to 9: ToolDown: code: &lt;none&gt;." in page


def test_smoothing_does_not_lag() -> None:
    assert smooth([0, 2, 4, 6], 1) == [1, 2, 4, 5]


def test_thinning_keeps_means_or_peaks_and_drops_what_is_not_finite() -> None:
    points = [(0, 1.0), (1, 3.0), (2, float("nan")), (3, 5.0), (4, 9.0)]
    assert thin(Series("a", "", points), 2) == [(0.5, 2), (3.5, 7)]
    assert thin(Series("a", "", points, peaks=True), 2) == [(0.5, 3), (3.5, 9)]


def test_a_chart_of_nothing_is_left_out() -> None:
    assert line_chart([]) == ""
    assert line_chart([Series("a", "#000", [(0, float("nan"))])]) == ""


def test_charts_are_drawn_of_the_metrics_that_a_run_has() -> None:
    sft = [{"stage": "sft", "step": step, "loss": 1 / step, "lr": 1e-3} for step in (1, 2)]
    rl = [
        {"stage": "rl", "step": 1, "reward": 0.5, "reward/calc": 0.25, "reward/hops": 0.75, "eval/failed": "ToolDown"}
    ]
    drawn = charts([*sft, *rl], SinkBoundary())
    assert [(group.title, [chart.title for chart in group.charts]) for group in drawn] == [
        ("Reinforcement", ["Reward"]),
        ("Fine-tuning", ["Loss", "Learning rate"]),
    ]
    assert [key.label for key in drawn[0].charts[0].keys] == ["all", "calc", "hops"]
    assert drawn[1].charts[0].keys == (), "a single line is what the title says"
    assert charts([], SinkBoundary()) == []


def test_an_svg_in_a_page_keeps_only_the_names_that_it_uses() -> None:
    svg = '<?xml?><!DOCTYPE svg><svg width="9pt" viewBox="0 0 9 9" version="1.1"><metadata>x</metadata>'
    svg += '<g id="axes_1"><defs><path id="m1"/></defs><use xlink:href="#m1"/><g clip-path="url(#p2)"/></g>'
    svg += '<clipPath id="p2"/></svg>\n'
    found = element(svg)
    assert re.findall(r'id="(.*?)"', found) == ["m1", "p2"]
    assert found.startswith("<svg xmlns=")
    assert 'viewBox="0 0 9 9" role="img">' in found
    assert "metadata" not in found


def test_the_page_tells_where_the_time_went(tmp_path: Path) -> None:
    spent = {"engines": [{"generating": 6.0, "syncing": 2.0}, {"generating": 8.0}], "learner": {"learning": 8.0}}
    found = {"sentence": "Learners are the bottleneck: at it.", "advice": "By simulation: more of them."}
    page = written(tmp_path, {**REPORT, "rl": {**REPORT["rl"], "time": spent}, "bottleneck": found})
    Balance(page)
    assert "Where the time of RL went" in page
    for text in ("engines: generating", "87.5 %", "engines: syncing", "12.5 %", "learners: learning", *found.values()):
        assert text in page
    assert "Where the time of RL went" not in written(tmp_path, REPORT)


def test_a_page_that_fails_leaves_the_report_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> str:
        raise ZeroDivisionError("a picture of nothing")

    monkeypatch.setattr(page_module, "page", fail)
    said: list[str] = []
    write_report(tmp_path, REPORT, [], boundary=SinkBoundary(said.append))
    assert json.loads((tmp_path / "report.json").read_text()) == REPORT
    assert said == [
        "report.html failed and is left out from now on; the run continues (ZeroDivisionError: a picture of nothing)"
    ]


def test_a_picture_that_fails_leaves_the_page_with_a_sentence_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(series: Sequence[Series], *, share: bool) -> str:
        if series and share:
            raise ZeroDivisionError("a picture of nothing")
        return line_chart(series, share=share)

    monkeypatch.setattr("coa.reporting.curves.line_chart", fail)
    said: list[str] = []
    values = {"entropy": 1.0, "clip_fraction": 0.1, "rejected_fraction": 0.2}
    metrics = [{"stage": "rl", "step": step, **values} for step in (1, 2, 3)]
    write_report(tmp_path, REPORT, metrics, boundary=SinkBoundary(said.append))
    assert said == [
        "the picture 'Clipped, truncated, rejected' failed and is left out from now on; the run continues "
        "(ZeroDivisionError: a picture of nothing)"
    ]
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    Balance(page)
    figures = re.findall(r"<figure>(.*?)</figure>", page, re.DOTALL)
    drawn = [("<svg" in one, "This picture could not be drawn." in one) for one in figures]
    assert drawn == [(True, False), (False, True)]
    assert "Entropy of the policy" in figures[0]
    assert "Clipped, truncated, rejected" in figures[1]


@pytest.mark.parametrize(
    "family", ["a$x_{$b", "50%", "_hidden", 'Städte/東京 "x"', "x\ud83d", "<b>", "a\nb", "$$", "\\frac{"]
)
def test_a_family_of_any_name_has_its_line_in_the_picture(tmp_path: Path, family: str) -> None:
    said: list[str] = []
    metrics = [{"stage": "rl", "step": step, "reward": 0.5, f"reward/{family}": step / 10} for step in (1, 2, 3)]
    write_report(tmp_path, REPORT, metrics, boundary=SinkBoundary(said.append))
    assert said == []
    page = unescape((tmp_path / "report.html").read_text(encoding="utf-8"))
    for part in family.replace("\ud83d", "?").split("\n"):
        assert part in page
