"""Pages in a real browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LOOKS = [(width, colours) for width in (1280, 400) for colours in ("light", "dark")]
"""Widths of the window, as on a desk and on a phone, and colours."""


@contextmanager
def opened(url: str, width: int, colours: Any) -> Iterator[Any]:
    """The page at a URL. An error in a script fails the test."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=colours)
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        yield page
        browser.close()
    assert faults == []


@contextmanager
def browsing(url: str, width: int = 400, colours: Any = "dark") -> Iterator[Any]:
    """The server's page. A request to anywhere else fails the test."""
    asked: list[str] = []
    with opened(url, width, colours) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.reload()
        page.wait_for_selector("#model option", state="attached")
        yield page
    assert all(address.startswith((url, "data:")) for address in asked)
