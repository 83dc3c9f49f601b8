"""`coa serve --follow` from the command line: real engine, real HTTP, and the files that a run leaves."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from coa.serving.following import STATES
from coa.storage.checkpoints import PROGRESS, RECORD
from coa.storage.files import write_atomically
from jobs.run.agent_file import write_agent
from tests.jobs.test_serve import AGENT, ASKED, greedily, greedy, wait_until_ready
from tests.support.ports import free_port
from tests.support.tiny import make_model

QUESTION, TOKENS = "How many cups remain ?", 12
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run whose reinforcement has just begun."""
    folder = tmp_path_factory.mktemp("follow") / "demo"
    write_agent(make_model(folder / "checkpoints" / "sft-model"), AGENT)
    return folder


@pytest.fixture(scope="module")
def url(run: Path) -> Iterator[str]:
    port = free_port()
    words = ["serve", "--follow", str(run), "--out", str(run / "out"), f"serving.port={port}", "serving.profile=code"]
    settings = ["serving.follow_every_s=1", "engine.kv_cache_gib=0.25", "placement.engine_cpus=0.5"]
    command = [sys.executable, "-m", "jobs.cli", *words, *settings, "placement.tool_cpus=0.25"]
    with (run / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=ignore_sigint)
        address = f"http://127.0.0.1:{port}"
        try:
            wait_until_ready(server, address, run / "log")
            yield address
        finally:
            server.send_signal(signal.SIGTERM)
            began = time.monotonic()
            assert server.wait(60) == 0
            print(f"ended after {time.monotonic() - began:.1f} s")


def ignore_sigint() -> None:
    """As a script does in a process that it starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def make_checkpoint(run: Path, version: int, model: Path) -> None:
    """What learners leave: their states, then the list that says that they are whole."""
    folder = run / "checkpoints" / "rl"
    states = folder / f"checkpoint_{version}" / STATES
    states.parent.mkdir(parents=True)
    module = {f"model.{name}": tensor for name, tensor in load_file(model / "model.safetensors").items()}
    torch.save({"module": module, "frozen_param_shapes": None}, states)
    write_atomically(folder / f"checkpoint_{version}" / PROGRESS, json.dumps({"version": version}))
    last = {"checkpoint_dir_name": f"checkpoint_{version}", "metrics": {"version": version}}
    write_atomically(folder / RECORD, json.dumps({"latest_checkpoint_result": last}))


def test_requests_go_on_while_a_version_is_taken_over(url: str, run: Path, tmp_path: Path) -> None:
    first, second = run / "checkpoints" / "sft-model", make_model(tmp_path / "second", seed=1)
    before, after = (greedy(model, QUESTION, TOKENS) for model in (first, second))
    assert before != after
    statuses: list[int] = []

    async def answer(client: httpx.AsyncClient) -> str:
        found = await client.post("/v1/chat/completions", json=greedily("demo", QUESTION, TOKENS))
        statuses.append(found.status_code)
        return found.json()["choices"][0]["message"]["content"]

    async def go() -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            ended = asyncio.Event()

            async def ask() -> None:
                while not ended.is_set():
                    body = {"model": "demo", "messages": ASKED, "temperature": 1.0}
                    statuses.append((await client.post("/v1/chat/completions", json=body)).status_code)

            async def told() -> tuple[Any, ...]:
                """The version, in each place that has it."""
                models = (await client.get("/v1/models")).json()["data"]
                alone = await client.post("/v1/chat/completions", json=greedily("demo", QUESTION, 2))
                body = {"model": "demo", "input": QUESTION, "coa": {"detail": "all"}}
                agent = await client.post("/v1/responses", json=body)
                fingerprint = alone.json()["system_fingerprint"]
                return {one["coa:version"] for one in models}, fingerprint, agent.json()["coa:versions"]

            assert await answer(client) == before
            assert await told() == ({0}, "weights-0", [0])
            asking = [asyncio.ensure_future(ask()) for _ in range(4)]
            await asyncio.to_thread(make_checkpoint, run, 5, second)
            deadline = time.monotonic() + 60
            while (await client.get("/readyz")).json()["version"] != 5:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            assert await answer(client) == after
            assert await told() == ({5}, "weights-5", [5])
            ended.set()
            await asyncio.gather(*asking)
            metrics = (await client.get("/metrics")).text
            assert "coa_weight_version{" in metrics
            assert "vllm:kv_cache_usage_perc{" in metrics

    asyncio.run(go())
    assert set(statuses) == {200}
    assert len(statuses) > 6
