"""`coa serve` with two replicas beside a thousand clients each that send half of a request, send it slowly, or do not
read their answer (docs/serving.md)."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import pytest

from coa.serving.front import HEAD_S
from jobs.run.agent_file import write_agent
from tests.jobs.test_serve import AGENT, ASKED, ROOT, serving
from tests.support.rude_clients import KINDS
from tests.support.tiny import make_model

COUNT = 1000
LOOK_S = 30.0
"""Seconds of each measurement: of three rounds of half-sent requests, which end after HEAD_S."""
OPENED_S = 180.0
"""Maximum seconds until nearly all of them are connected."""
HEALTH_S = 0.1
LONGER = 2.5
"""Most times as long as without them. 1.6 to 1.9 on two cores, which the clients share."""
REQUESTS: dict[str, dict[str, Any]] = {
    "agent": {"model": "demo", "messages": ASKED, "seed": 3},
    "alone": {"model": "demo:plain", "messages": ASKED, "max_tokens": 32, "ignore_eos": True},
}


@contextmanager
def rude_clients(port: int, log: Path) -> Iterator[Callable[[], list[dict[str, int]]]]:
    """Gives the number of open connections by kind, of every second so far."""
    with log.open("w") as out:
        words = [sys.executable, "-m", "tests.support.rude_clients", str(port), str(COUNT)]
        process = subprocess.Popen(words, stdout=out, cwd=ROOT)

    def opened() -> list[dict[str, int]]:
        assert process.poll() is None
        return [json.loads(line) for line in log.read_text().rpartition("\n")[0].splitlines()]

    try:
        yield opened
    finally:
        process.kill()
        process.wait()


def measured(url: str) -> tuple[dict[str, float], list[float]]:
    """Median latency of each request, in seconds, and all latencies of the health check meanwhile."""
    ended, health = threading.Event(), list[float]()

    def look() -> None:
        with httpx.Client(base_url=url, timeout=60) as client:
            while not ended.wait(0.2):
                began = time.perf_counter()
                client.get("/healthz").raise_for_status()
                health.append(time.perf_counter() - began)

    looking = threading.Thread(target=look)
    looking.start()
    seconds: dict[str, list[float]] = {name: [] for name in REQUESTS}
    until = time.monotonic() + LOOK_S
    with httpx.Client(timeout=60) as client:
        while time.monotonic() < until:
            for name, body in REQUESTS.items():
                began = time.perf_counter()
                client.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
                seconds[name].append(time.perf_counter() - began)
    ended.set()
    looking.join()
    return {name: median(found) for name, found in seconds.items()}, health


@pytest.mark.slow
def test_beside_a_thousand_clients_of_each_kind_a_user_waits_little_longer(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    assert LOOK_S > HEAD_S
    model = make_model(tmp_path / "demo" / "model")
    write_agent(model, AGENT)
    with serving(model, "rude", "serving.min_replicas=2", "serving.max_replicas=2") as (url, _):
        measured(url)  # the first requests compile grammars
        alone, _ = measured(url)
        with rude_clients(int(url.rpartition(":")[2]), tmp_path / "opened") as opened:
            deadline = time.monotonic() + OPENED_S
            while not (counts := opened()) or min(counts[-1].values()) < 0.8 * COUNT:
                assert time.monotonic() < deadline, counts[-1:]
                time.sleep(1)
            beside, health = measured(url)
            during = opened()[len(counts) :]
    kept = {kind: median(one[kind] for one in during) for kind in KINDS}
    figures = {"alone": alone, "beside": beside, "health": quantiles(health, n=100), "kept": kept}
    record_property("rude", figures)
    print(figures)
    assert min(kept.values()) > 0.8 * COUNT
    assert all(beside[name] <= LONGER * alone[name] for name in alone)
    assert quantiles(health, n=100)[98] <= HEALTH_S
