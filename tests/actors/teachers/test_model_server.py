"""A served language model: it comes up or says why not, ends with its owner, and its owner with it."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actors.teachers.model_server import ModelServer, ModelServerConfig, arguments_of, environment_of
from coa.errors import ContextTooLong, ModelServerDown, UserError
from coa.llm.client import Endpoint, EndpointConfig
from tests.support.endpoints import ROOT, Script, serving
from tests.support.patience import soon
from tests.support.tiny import make_model

SERVER = """
import http.server, os, subprocess, sys
print("loading", sys.argv[sys.argv.index("--model") + 1], os.environ["OMP_NUM_THREADS"], flush=True)
worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("worker", worker.pid, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

port = int(sys.argv[sys.argv.index("--port") + 1])
host = sys.argv[sys.argv.index("--host") + 1]
http.server.HTTPServer((host, port), Handler).serve_forever()
"""
SERVES = (sys.executable, "-S", "-c", SERVER)
"""A server that has started a process of its own."""


def program(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


def runs(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def until_ended(*pids: int) -> bool:
    """Whether all end."""
    return soon(lambda: not any(map(runs, pids)))


def worker_of(server: ModelServer) -> int:
    found = re.search(r"worker (\d+)", server.last_lines())
    assert found
    return int(found[1])


def test_a_server_is_there_until_it_is_stopped() -> None:
    async def go() -> tuple[int, int]:
        server = ModelServer(ModelServerConfig(model="m", threads=3), program=SERVES)
        assert server.url() == ""
        url = await server.start()
        assert server.url() == url
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)
        assert server.last_lines().startswith("loading m 3\nworker ")
        pids = server.pid, worker_of(server)
        assert all(map(runs, pids))
        await server.stop()
        assert server.url() == ""
        await server.stop()
        return pids

    pids = asyncio.run(go())
    assert not runs(pids[0])
    assert until_ended(*pids)


def test_a_server_listens_where_the_cluster_reaches_it_unless_it_is_told_where() -> None:
    async def go(host: str | None) -> str:
        config = ModelServerConfig(model="m", host=host)
        server = ModelServer(config, program=SERVES, address=lambda: "127.0.0.2")
        url = await server.start()
        await server.stop()
        return url.rpartition(":")[0]

    assert asyncio.run(go(None)) == "http://127.0.0.2"
    assert asyncio.run(go("127.0.0.3")) == "http://127.0.0.3"


def test_a_server_that_does_not_come_up_is_told_of_with_the_end_of_its_log() -> None:
    code = "import sys; [print('line', i, flush=True) for i in range(50)]; sys.exit('no such model')"

    async def go() -> str:
        with pytest.raises(ModelServerDown) as down:
            await ModelServer(ModelServerConfig(model="m"), program=program(code)).start()
        return str(down.value)

    said = asyncio.run(go())
    lines = "".join(f"line {number}\n" for number in range(39, 50))
    assert said == f"the server of m ended with status 1 before it answered; its log ends:\n{lines}no such model"


def test_a_program_that_is_not_there_is_told_of() -> None:
    with pytest.raises(ModelServerDown, match="No such file or directory: '/no/such/program'"):
        asyncio.run(ModelServer(ModelServerConfig(model="m"), program=("/no/such/program",)).start())


@pytest.mark.parametrize("start_s", [0.001, 1.0])
def test_a_server_that_does_not_answer_in_its_time_is_ended(start_s: float, tmp_path: Path) -> None:
    async def go() -> str:
        deaf = program(f"import os, time; open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w'); time.sleep(600)")
        server = ModelServer(ModelServerConfig(model="m", start_s=start_s), program=deaf)
        with pytest.raises(ModelServerDown) as down:
            await server.start()
        assert not server.pid or not runs(server.pid)
        return str(down.value)

    assert asyncio.run(go()) == f"the server of m did not answer within {start_s:g} s; its log ends:\n(it is empty)"
    assert until_ended(*(int(path.name) for path in tmp_path.iterdir()))


def test_a_port_that_is_taken_is_told_of() -> None:
    async def go() -> None:
        async with serving(Script()) as other:
            with pytest.raises(ModelServerDown, match=r"no server can listen at 127.0.0.1:.*: Address already in use"):
                await ModelServer(ModelServerConfig(model="m", port=other.port), program=SERVES).start()

    asyncio.run(go())


def test_the_owner_is_told_when_a_server_ends_and_nothing_of_it_stays() -> None:
    async def go() -> tuple[int, int]:
        gone = asyncio.Event()
        server = ModelServer(ModelServerConfig(model="m"), program=SERVES, gone=gone.set)
        await server.start()
        pids = server.pid, worker_of(server)
        assert not gone.is_set()
        os.kill(server.pid, signal.SIGKILL)
        await gone.wait()
        assert server.url() == ""
        await server.stop()
        return pids

    assert until_ended(*asyncio.run(go()))


OWNER = """
import asyncio, json, sys
from actors.teachers.model_server import ModelServer, ModelServerConfig
from tests.actors.teachers.test_model_server import SERVES, worker_of

async def go():
    server = ModelServer(ModelServerConfig(model="m"), program=SERVES)
    await server.start()
    print(json.dumps([server.pid, worker_of(server)]), flush=True)
    await asyncio.sleep(600)

asyncio.run(go())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_its_owner_however_that_goes(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = json.loads(owner.stdout.readline())
        assert all(map(runs, pids))
        owner.send_signal(number)
        owner.communicate()
    assert until_ended(*pids)


def test_on_cpu_no_prefill_is_cut_and_on_gpus_the_model_is_split() -> None:
    cpu = arguments_of(ModelServerConfig(model="folder", name="m", max_model_len=9000), "127.0.0.1", 80)
    assert "--no-enable-chunked-prefill" in cpu
    assert cpu[cpu.index("--max-num-batched-tokens") + 1] == "9000"
    assert cpu[cpu.index("--served-model-name") + 1] == "m"
    shared = arguments_of(ModelServerConfig(model="m", kv_cache_gib=0.5), "h", 80, cpu=False)
    assert "--no-enable-chunked-prefill" not in shared
    assert shared[shared.index("--gpu-memory-utilization") + 1] == "0.02"
    assert shared[shared.index("--kv-cache-memory-bytes") + 1] == str(2**29)
    gpu = arguments_of(ModelServerConfig(model="m", gpus=2, enforce_eager=False, arguments=["--x", "1"]), "h", 80)
    assert gpu[gpu.index("--tensor-parallel-size") + 1] == "2"
    assert not {"--enforce-eager", "--no-enable-chunked-prefill"} & set(gpu)
    assert gpu[-2:] == ["--x", "1"]
    assert environment_of(ModelServerConfig(gpus=2)) == {}


# Real vLLM.


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[asyncio.AbstractEventLoop, str]]:
    """The event loop and the URL of a tiny model of random weights, named "tiny"."""
    folder = make_model(tmp_path_factory.mktemp("model"))
    loop = asyncio.new_event_loop()
    config = ModelServerConfig(model=str(folder), name="tiny", dtype="float32", max_model_len=256, start_s=600)
    server = ModelServer(config)
    try:
        yield loop, loop.run_until_complete(server.start())
    finally:
        loop.run_until_complete(server.stop())
        assert until_ended(server.pid)
        loop.close()


def asked(
    served: tuple[asyncio.AbstractEventLoop, str], question: str = "How many cups remain ?", **config: Any
) -> Any:
    loop, url = served

    async def go() -> Any:
        endpoint = Endpoint(EndpointConfig(**{"url": url, "name": "tiny", "max_tokens": 24, "attempts": 1, **config}))
        try:
            return await endpoint.complete([{"role": "user", "content": question}], seed=7)
        finally:
            await endpoint.close()

    return loop.run_until_complete(go())


@pytest.mark.slow
def test_a_served_model_answers_and_its_tokens_are_counted(served: Any) -> None:
    first, second = asked(served), asked(served)
    assert first.text
    assert first == second
    assert first.finish_reason == "length"
    assert (first.usage.requests, first.usage.completion_tokens) == (1, 24)
    assert 5 < first.usage.prompt_tokens < 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outputs", "form"),
    [
        ({"choice": ["correct", "incorrect"]}, "correct|incorrect"),
        ({"regex": "[1-5] stars"}, "[1-5] stars"),
        ({"grammar": 'root ::= "<score>" [0-9] "</score>"'}, "<score>[0-9]</score>"),
    ],
    ids=["choice", "regex", "grammar"],
)
def test_a_model_of_random_weights_can_be_held_to_a_form(served: Any, outputs: dict[str, Any], form: str) -> None:
    held = asked(served, extra={"structured_outputs": outputs})
    assert re.fullmatch(form, held.text)
    assert held.finish_reason == "stop"


@pytest.mark.slow
def test_what_a_real_server_refuses_is_told_apart(served: Any) -> None:
    with pytest.raises(ContextTooLong, match=r"status 400: .*max_model_len=256"):
        asked(served, max_tokens=4000)
    with pytest.raises(ContextTooLong, match=r"status 400: .*context length"):
        asked(served, question="cups " * 300)
    with pytest.raises(UserError, match=r"status 404: .*other.* does not exist"):
        asked(served, name="other")
