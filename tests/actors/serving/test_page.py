"""The page, in a real browser, on a server whose policy is scripted."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from actors.serving.app import make_app
from tests.actors.serving.test_server import TURNS
from tests.support.agent_server import make_server
from tests.support.browser import CHROMIUM, browsing
from tests.support.ports import free_port
from tests.support.runners import Saying


@pytest.fixture
def url() -> Iterator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(make_app(make_server(Saying(*TURNS))), port=port, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
def test_a_conversation_that_the_server_no_longer_has_begins_anew_and_the_page_says_so(url: str) -> None:
    with browsing(url) as page:
        posted: list[dict[str, Any]] = []
        page.on("request", lambda asked: asked.method == "POST" and posted.append(asked.post_data_json))

        def went_on_from() -> list[str | None]:
            return [body["previous_response_id"] for body in posted]

        def ask(count: int) -> None:
            page.fill("#question", "Who is the mayor of Arden ?")
            page.press("#question", "Enter")
            page.locator(".foot .used").nth(count - 1).wait_for(timeout=30_000)
            assert page.locator(".answer").all_text_contents() == ["Berg"] * count

        ask(1)
        assert "weights 0" in page.text_content(".foot .used")
        ask(2)
        first, second = went_on_from()
        assert first is None
        assert second is not None
        assert page.locator(".note").count() == 0
        last = page.evaluate("previous")
        assert last != second, "it goes on from the answer before"
        assert httpx.delete(f"{url}/v1/responses/{last}").json()["deleted"]
        ask(3)
        assert page.locator(".turn").nth(2).locator(".note").all_text_contents() == [
            "The server no longer has this conversation: a new one begins here."
        ]
        assert page.locator(".fault").count() == 0
        assert went_on_from()[2:] == [last, None]
