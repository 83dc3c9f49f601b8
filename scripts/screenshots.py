"""Takes the screenshots of the serving page in docs/: a real conversation with a trained model.

    python scripts/screenshots.py http://127.0.0.1:8000        of a running server: coa serve --model runs/demo/model

Needs Chromium and playwright (the extra `dev`).
"""

import argparse
import shutil
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
QUESTION = "Who is the current owner of Vexon Labs ?"
PICTURES = {
    "serving-light.png": ("light", 1000, 760),
    "serving-dark.png": ("dark", 1000, 760),
    "serving-narrow.png": ("light", 400, 800),
}
"""Colours, width and height of each, in CSS pixels."""
ANSWER_MS = 60_000


def take(browser: Any, url: str, question: str, path: Path, colours: str, width: int, height: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
    page.goto(url)
    page.wait_for_selector("#model option", state="attached")
    page.fill("#question", question)
    page.press("#question", "Enter")
    page.wait_for_selector(".foot .used", timeout=ANSWER_MS)
    for details in page.query_selector_all("details")[:1]:
        details.evaluate("element => element.open = true")
    page.evaluate("document.getElementById('log').scrollTop = 0")
    page.screenshot(path=path)
    page.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (colours, width, height) in PICTURES.items():
            take(browser, options.url, options.question, options.out / name, colours, width, height)
            print(options.out / name, f"{(options.out / name).stat().st_size / 1000:.0f} kB")
        browser.close()


if __name__ == "__main__":
    main()
