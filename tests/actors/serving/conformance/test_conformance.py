"""The official conformance suite of MCP, against the server at /mcp.

    npm install --prefix FOLDER @modelcontextprotocol/conformance@0.1.16 node@22
    MCP_CONFORMANCE=FOLDER python -m pytest tests/actors/serving/conformance

What the suite looks for on a server is mounted here, beside the tool of the product.
"""

import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from actors.serving import app
from actors.serving.mcp import McpApp
from actors.serving.server import Server
from tests.actors.serving.conformance.fixtures import add_fixtures
from tests.support.agent_server import make_server

BINARIES = Path(os.environ.get("MCP_CONFORMANCE", "not-set")) / "node_modules" / ".bin"
EXPECTED = Path(__file__).with_name("expected_failures.yaml")


class WithFixtures(McpApp):
    def __init__(self, server: Server, host: str) -> None:
        super().__init__(server, host)
        add_fixtures(self.mcp)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(app, "McpApp", WithFixtures)
    listening = socket.create_server(("127.0.0.1", 0))
    serving = uvicorn.Server(uvicorn.Config(app.make_app(make_server()), log_level="critical"))
    thread = threading.Thread(target=serving.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp/"
    serving.should_exit = serving.force_exit = True
    thread.join()


@pytest.mark.skipif(
    not (BINARIES / "conformance").exists(),
    reason="MCP_CONFORMANCE names no folder with @modelcontextprotocol/conformance; this file says how to make one",
)
def test_the_server_fails_no_scenario_but_those_that_it_is_expected_to(url: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(BINARIES / "conformance"), "server", "--url", url, "--expected-failures", str(EXPECTED)],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{BINARIES.absolute()}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert re.search(r"^Total: 21 passed, 9 failed$", done.stdout, re.MULTILINE), done.stdout[-4000:]
