"""What `make demo` trained, served: it solves tasks that it has not seen, for a client that knows nothing of agents.

COA_DEMO names the run directory of a finished demo, if it is not `runs/demo`.
"""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from coa.config import load
from coa.grading.match import exact_match
from coa.types import Task
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import as_trained
from jobs.stages.evaluate import asked_of
from tests.jobs.test_serve import serving
from tests.project.test_docs import ROOT

MODEL = Path(os.environ.get("COA_DEMO", ROOT / "runs" / "demo")) / "model"
TASKS, AT_ONCE, SHARE = 200, 16, 0.8

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODEL.is_dir(), reason=f"no finished demo: {MODEL} is not there (make demo, or COA_DEMO)"),
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("demo")
    (folder / "model").symlink_to(MODEL.absolute())
    with serving(folder / "model", "out", settings=("serving.name=demo",)) as (address, _):
        yield address


def test_the_agent_solves_tasks_that_it_has_not_seen(url: str, tmp_path: Path, record_property: Any) -> None:
    tasks = asked_of(as_trained(load(Recipe), MODEL, tmp_path, ()), None, TASKS, best_of=False).tasks
    assert len(tasks) == TASKS
    answers = asyncio.run(answers_to(tasks, url))
    solved = Counter(
        task.family for task, answer in zip(tasks, answers, strict=True) if exact_match(answer, task.answers)
    )
    print(f"{solved.total()} of {TASKS} tasks are solved: {dict(solved)}")
    record_property("solved", dict(solved))
    assert solved.total() >= SHARE * TASKS


async def answers_to(tasks: Sequence[Task], url: str) -> list[str]:
    """Of the agent, in the order of the tasks."""
    from openai import AsyncOpenAI

    client, places = AsyncOpenAI(base_url=f"{url}/v1", api_key="none"), asyncio.Semaphore(AT_ONCE)

    async def answer(task: Task) -> str:
        async with places:
            asked: Any = [{"role": "user", "content": task.question}]
            found = await client.chat.completions.create(model="demo", messages=asked)
            return found.choices[0].message.content or ""

    async with client:
        return await asyncio.gather(*map(answer, tasks))


def test_a_server_that_knows_nothing_of_agents_takes_the_model(tmp_path: Path) -> None:
    """vLLM's server, as docs/serving.md says: what it writes first is a plan, as in training. (Its command asks for the
    version of a package `vllm`, which the CPU build is not.)"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL), "--served-model-name", "demo"]
    here = ["--host", "127.0.0.1", "--port", port]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([sys.executable, *command, *here], stdout=log, stderr=log, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        question = {"role": "user", "content": "Who is the current owner of Vexon Labs ?"}
        asked = {
            "model": "demo",
            "messages": [question],
            "max_tokens": 20,
            "temperature": 0,
            "skip_special_tokens": False,
        }
        deadline = time.monotonic() + 240
        while True:
            assert server.poll() is None, (tmp_path / "log").read_text()[-2000:]
            assert time.monotonic() < deadline
            with suppress(httpx.TransportError):
                answer = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=60)
                break
            time.sleep(1.0)
        turn = answer.json()["choices"][0]["message"]["content"]
        assert re.fullmatch("<plan>[^<]*</plan><web_search>[^<]*", turn), turn  # the tag that ends it is left out
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
