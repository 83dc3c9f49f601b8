"""The server's page in a real browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def browsing(url: str) -> Iterator[Any]:
    """As on a phone, in the dark. A request to anywhere else fails the test, and so does an error in a script."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme="dark")
        asked, faults = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(url)
        page.wait_for_selector("#model option", state="attached")
        yield page
        browser.close()
    assert faults == []
    assert all(address.startswith((url, "data:")) for address in asked)
