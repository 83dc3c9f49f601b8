"""Takes the pictures in docs/ of a real run: its page, what it printed, and a conversation with its model.

    make demo | tee demo.txt
    python scripts/screenshots.py --run runs/demo --printed demo.txt
    coa serve --model runs/demo/model
    python scripts/screenshots.py --server http://127.0.0.1:8000

Needs Chromium and playwright (the extra `dev`).
"""

import argparse
import html
import re
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
REPORT = ("light", 1100, 1840)
TERMINAL = """<body style="margin:0;background:#10151d;color:#dfe5ec"><pre style="margin:0;padding:22px;
font:15px/20px 'DejaVu Sans Mono',monospace;white-space:pre-wrap">$ make demo
{text}</pre></body>"""
ANSWER_MS = 60_000
PROGRESS = re.compile(r"(?P<stage>[a-z]+(?: [a-z]+)?) +(?P<count>\d+/\d+)? +\d+:\d\d  ")
"""A line of progress: its stage, how far it is, and its time."""


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


def take_report(browser: Any, run: Path, path: Path) -> None:
    colours, width, height = REPORT
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=colours)
    page.goto((run / "report.html").resolve().as_uri())
    page.screenshot(path=path)
    page.close()


def take_printed(browser: Any, text: str, path: Path) -> None:
    """What is left of a run on a terminal: of each stage its last line of progress, and no line of waiting."""
    lines = text.strip().splitlines()
    progress = {n: found for n, line in enumerate(lines) if (found := PROGRESS.match(line))}
    last = {found["stage"]: n for n, found in progress.items() if found["count"]}
    shown = [line for n, line in enumerate(lines) if n not in progress or n in last.values()]
    page = browser.new_page(viewport={"width": 900, "height": 100})
    page.set_content(TERMINAL.format(text=html.escape("\n".join(shown))))
    page.screenshot(path=path, full_page=True)
    page.close()


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="folder of a finished run, for report.png")
    parser.add_argument("--printed", type=Path, help="what its command printed, for demo.png")
    parser.add_argument("--server", help="URL of a server, for serving-*.png")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        if options.run:
            take_report(browser, options.run, options.out / "report.png")
        if options.printed:
            take_printed(browser, options.printed.read_text(encoding="utf-8"), options.out / "demo.png")
        if options.server:
            for name, (colours, width, height) in PICTURES.items():
                take(browser, options.server, options.question, options.out / name, colours, width, height)
        browser.close()


if __name__ == "__main__":
    main()
