"""The page of a run in a real browser: at every width, in light and in the dark, all of it can be read."""

import json
from pathlib import Path
from typing import Any

import pytest

from coa.reporting.page import Example, write_report
from coa.types import Task
from tests.coa.reporting.test_report import REPORT
from tests.support.browser import CHROMIUM, LOOKS, opened
from tests.support.legible import illegible

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")]
RUNS = Path(__file__).parent / "runs"
"""What runs left: report.json and metrics.jsonl of each."""
FAMILIES = (
    "calc",
    "a_family_of_tasks_with_a_name_of_eighty_characters_which_nobody_would_choose_yet",
    "多跳问题与网络搜索的任务家族名称很长很长很长很长",
    "שאלות מרובות שלבים על בעלי חברות",
)
UNBROKEN = "https://example.org/" + "x" * 300


def estimate(mean: float) -> dict[str, Any]:
    return {"mean": mean, "ci95": [max(0.0, mean - 0.04), min(1.0, mean + 0.04)], "n": 600}


def everything() -> dict[str, Any]:
    """A report with each part that a page has, and names that nobody expects."""
    report = json.loads(json.dumps(REPORT))
    for name, mean in (("sft", 0.5), ("rl", 0.98)):
        report["evaluation"][name] |= {
            "greedy": estimate(mean),
            "pass_at_1": estimate(mean),
            "families": {family: {"greedy": estimate(mean), "pass_at_1": estimate(mean)} for family in FAMILIES},
            "strategies": {family: {"careful": 0.3, "lazy": 0.5, "a strategy " * 7: 0.2} for family in FAMILIES},
        }
    gain = {"mean": -0.981, "ci95": [-0.997, -0.878], "n": 600}
    both = {"greedy": gain, "pass_at_1": gain}
    report["evaluation"]["gain"] = {**both, "families": dict.fromkeys(FAMILIES, both)}
    report["cost"]["families"] = {family: {"token_reduction": 0.81} for family in FAMILIES}
    report["rl"] |= {
        "dropped": {"no variance": 12345, "a_reason_of_eighty_characters_" * 3: 3},
        "families_vanished": [{"family": FAMILIES[1], "why": f"ToolDown: {UNBROKEN}", "since": 4, "until": None}],
        "groups_failing": [{"why": f"ToolDown: {UNBROKEN}", "since": 4, "until": 9}],
        "time": {
            "wall": 300,
            "engines": [{"generating": 200, "waiting_for_tools": 30, "waiting_for_weights": 50, "syncing": 20}],
            "learner": {"learning": 120, "waiting_for_samples": 160, "publishing": 20},
        },
    }
    report["bottleneck"] = {
        "sentence": "The loop waited for the engines: learners had no batch for 53 % of the time, and no group waited.",
        "advice": "placement.engines=2 would help most: 1.6 times as many trajectories a second, by simulation; it "
        "needs 2 more CPUs than this machine has (rl.window.groups_per_batch=8 would give 1.1 times as many).",
    }
    return report


def records() -> list[dict[str, Any]]:
    rl = [
        {
            "stage": "rl",
            "step": step,
            "reward": step / 40,
            **{f"reward/{family}": step / (40 + n) for n, family in enumerate(FAMILIES)},
            "length_p50": 1234567,
            "length_p99": 2345678,
            "kl_rollout": 1.5e-7 * step,
            "clip_fraction": 0.01,
            "truncated_weight_fraction": 0.02,
            "truncated_fraction": 0.03,
            "rejected_fraction": 0.5,
        }
        for step in range(1, 41)
    ]
    return rl + [{"stage": "sft", "step": step, "loss": 3 / step} for step in range(1, 301)]


def trajectories() -> list[Example]:
    text = f"<think> {UNBROKEN}</think><plan> {'无法断行的长文本' * 30}</plan><observation> {UNBROKEN}</observation>"
    tags = "".join(f"<{tag}> שלום 42</{tag}>" for tag in ("code", "reflection", "double_check"))
    asked = f"{'מי הבעלים של 42 ?'} {UNBROKEN}"
    return [
        Example(
            task=Task(id="t", question=asked, answers=(UNBROKEN,), profile="web", family=family),
            made_by="RL",
            text=f"{text}{tags}<answer> {UNBROKEN}</answer>{'' if correct else '<plan> left open'}",
            correct=correct,
        )
        for family in FAMILIES
        for correct in (True, False)
    ]


@pytest.fixture(params=["everything", *sorted(path.name for path in RUNS.glob("*"))])
def page_of_a_run(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "everything":
        title = f"Chain-of-Agents: {'ein_ordner_' * 8}"
        write_report(tmp_path, everything(), records(), trajectories(), title=title)
    else:
        run = RUNS / request.param
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        write_report(tmp_path, json.loads((run / "report.json").read_text(encoding="utf-8")), metrics)
    return (tmp_path / "report.html").as_uri()


@pytest.mark.parametrize(("width", "colours"), LOOKS)
def test_all_of_it_can_be_read(page_of_a_run: str, width: int, colours: str, tmp_path: Path) -> None:
    with opened(page_of_a_run, width, colours) as page:
        page.screenshot(path=tmp_path / f"{width}-{colours}.png", full_page=True)
        assert illegible(page) == []
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if colours == "light" else "rgb(20, 24, 30)")


@pytest.mark.parametrize(
    ("style", "fault"),
    [
        ("td:first-child { white-space: nowrap !important; overflow-wrap: normal }", "beside the window"),
        ("h1 { overflow: hidden; white-space: nowrap; width: 200px }", "cut off by <H1>"),
        (".note { color: #aaa !important }", "contrast 2."),
        ("figure text { fill: #aaa !important }", "contrast 2."),
        ("main { opacity: .9 }", "faded or filtered"),
        (".tile { height: 20px } .tiles { margin-bottom: 0 }", "over each other"),
        ("figure { width: 200px }", " px: "),
        (".bar { width: 2000px }", "the page is 20"),
    ],
)
def test_what_cannot_be_read_is_found(tmp_path: Path, style: str, fault: str) -> None:
    write_report(tmp_path, everything(), records(), trajectories(), title="Chain-of-Agents: " + "name " * 20)
    with opened((tmp_path / "report.html").as_uri(), 400, "light") as page:
        page.add_style_tag(content=style)
        assert any(fault in found for found in illegible(page))
