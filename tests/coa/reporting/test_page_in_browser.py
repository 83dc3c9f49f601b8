"""The page of a run in a real browser: on a phone nothing is cut off, and in the dark it is dark."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.coa.reporting.test_report import REPORT, written
from tests.support.browser import CHROMIUM

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH")]
LONG = "a_family_of_tasks_with_a_long_name"
METRICS = [
    {"stage": "rl", "step": step, "reward": step / 40, "correct": step / 40, "loss": 0.1, "tokens_s": 12345.6}
    for step in range(1, 37)
]


@pytest.fixture
def page_of_a_run(tmp_path: Path) -> str:
    report = json.loads(json.dumps(REPORT).replace('"calc"', f'"{LONG}"'))
    written(tmp_path, report, metrics=METRICS)
    return (tmp_path / "report.html").as_uri()


@pytest.mark.parametrize("colours", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1000])
def test_it_fits_its_window_in_light_and_dark(page_of_a_run: str, width: int, colours: Any) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=colours)
        page.goto(page_of_a_run)
        assert LONG in page.inner_text("body")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        ink = page.evaluate("getComputedStyle(document.querySelector('svg text')).fill")
        browser.close()
    assert (brightness(paper) > 200) == (colours == "light")
    assert abs(brightness(paper) - brightness(ink)) > 80


def brightness(colour: str) -> float:
    """Of "rgb(20, 24, 30)", 0 to 255."""
    numbers = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(numbers) / 3
