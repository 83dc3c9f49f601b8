"""The page, in a real browser, on a server whose policy is scripted."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from actors.serving.app import make_app
from tests.actors.serving.test_server import TURNS
from tests.support.agent_server import make_server
from tests.support.browser import CHROMIUM, LOOKS, browsing
from tests.support.legible import illegible
from tests.support.runners import Saying


@pytest.fixture
def url() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(make_app(make_server(Saying(*TURNS))), log_level="critical"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
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


UNBROKEN = "https://example.org/" + "x" * 300
ODD = [
    {"type": "reasoning", "content": [{"text": UNBROKEN}]},
    {"type": "coa:plan", "content": [{"text": "无法断行的长文本" * 30}]},
    {"type": "web_search_call", "action": {"query": f"מי הבעלים של {UNBROKEN}"}, "coa:output": UNBROKEN},
    {
        "type": "custom_call",
        "name": "a_tool_with_a_name_of_eighty_characters_" * 2,
        "input": UNBROKEN,
        "output": UNBROKEN,
    },
    {"type": "coa:suggested_answer", "content": [{"text": "שלום 42"}]},
    {"type": "message", "content": [{"text": UNBROKEN}]},
]
"""Items of a response that are hard to show."""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize(("width", "colours"), LOOKS)
def test_all_of_a_conversation_can_be_read(url: str, width: int, colours: str) -> None:
    with browsing(url, width, colours) as page:
        assert illegible(page) == []
        page.fill("#question", "Who is the mayor of Arden ?")
        page.press("#question", "Enter")
        page.locator(".foot .used").wait_for(timeout=30_000)
        page.evaluate(
            """([question, items]) => {
              const turn = new Turn(question);
              items.forEach((item, index) => { turn.add(item, index); turn.finish(item, index); });
              turn.end(null, question);
              document.getElementById("model").append(new Option(question.slice(0, 80), question, true, true));
              document.getElementById("key-label").hidden = false;
            }""",
            [f"מי הבעלים של {UNBROKEN}", ODD],
        )
        assert illegible(page) == []
