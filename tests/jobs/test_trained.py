"""What the tiny recipe trains on one family of tasks: two learners that shard the model, and two engines, reach the
reward of one of each; and what is trained solves unseen tasks, for clients that know nothing of agents."""

import asyncio
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from coa.config import load
from coa.grading.match import exact_match
from coa.learning.batches import BatchStore
from coa.reporting.metrics import Record, read_metrics
from coa.types import Task
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import as_trained
from jobs.stages.evaluate import evaluation_plan
from tests.jobs.test_serve import serving

pytestmark = pytest.mark.slow
LIMIT_S = 1800
STEPS = 16
SETTINGS = (
    # One family of tasks needs a third of the fine-tuning.
    "world.families=[mhqa]",
    "distill.runs=16000",
    "distill.keep=10000",
    "sft.steps=250",
    f"rl.steps={STEPS}",
    "evaluation.tasks=150",
    "evaluation.samples=4",
    "session.cpus=4",
)
TWO = ("placement.engines=2", "rl.learner.ranks=2", "rl.learner.zero_stage=3")
GAIN = 0.2
"""Between the end of the interval at the start and the beginning of that at the end."""
TASKS, AT_ONCE, SHARE = 150, 16, 0.8


def coa(stage: str, folder: Path, *settings: str) -> None:
    words = ["--recipe", "tiny", f"run_dir={folder}", *SETTINGS, *settings]
    command = [sys.executable, "-m", "jobs.cli", stage, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@dataclass(frozen=True)
class Trained:
    folder: Path
    report: dict[str, Any]
    records: list[Record]
    """Of the steps."""
    shares: set[int]
    """In how many shares the batches were dealt."""


def trained(start: Path, folder: Path, *settings: str) -> Trained:
    """A run that goes on from where `start` is fine-tuned."""
    shutil.copytree(start, folder, ignore=shutil.ignore_patterns("config.yaml", "logs"))
    coa("train", folder, *settings)
    report = json.loads((folder / "report.json").read_text())
    records = [one for one in read_metrics(folder / "metrics.jsonl") if one["stage"] == "rl" and "loss" in one]
    store = BatchStore(folder / "batches")
    return Trained(folder, report, records, {sum(map(bool, store.read(step))) for step in store.steps()})


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "start"
    for stage in ("distill", "sft"):
        coa(stage, folder)
    return folder


@pytest.fixture(scope="module")
def one(start: Path) -> Trained:
    """Of one learner and one engine."""
    return trained(start, start.parent / "one")


@pytest.fixture(scope="module")
def url(one: Trained, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "model").symlink_to(one.folder / "model")
    with serving(folder / "model", "out", settings=("serving.name=demo",)) as (address, _):
        yield address


def interval(report: dict[str, Any], stage: str) -> tuple[float, float]:
    """Of the share of held-out tasks that an attempt at temperature 1 gets right, at 95 %."""
    found = report["evaluation"][stage]["pass_at_1"]
    low, high = found["ci95"]
    print(f"{stage}: {found['mean']:.3f} [{low:.3f}, {high:.3f}] of {found['n']}")
    return low, high


def test_two_learners_and_two_engines_reach_the_reward_of_one_and_one(start: Path, one: Trained) -> None:
    two = trained(start, start.parent / "two", *TWO)
    assert (one.shares, two.shares) == ({1}, {2})
    assert [{record["engines_wished"] for record in run.records} for run in (one, two)] == [{1}, {2}]
    assert len(one.records) == len(two.records) == STEPS
    for report in (one.report, two.report):
        assert report["rl"]["logprob_max_diff"] < 1e-4
        assert report["rl"]["faults"] == 0
        assert interval(report, "rl")[0] > interval(report, "sft")[1] + GAIN
    assert one.report["evaluation"]["tasks_sha256"] == two.report["evaluation"]["tasks_sha256"]
    (low, high), (other_low, other_high) = interval(one.report, "rl"), interval(two.report, "rl")
    assert low <= other_high
    assert other_low <= high


def test_the_agent_solves_tasks_that_it_has_not_seen(one: Trained, url: str, tmp_path: Path) -> None:
    tasks = evaluation_plan(
        as_trained(load(Recipe), one.folder / "model", tmp_path, ()), None, TASKS, best_of=False
    ).tasks
    assert [task.family for task in tasks] == ["mhqa"] * TASKS
    answers = asyncio.run(answers_to(tasks, url))
    solved = sum(exact_match(answer, task.answers) for task, answer in zip(tasks, answers, strict=True))
    print(f"{solved} of {TASKS} tasks are solved")
    assert solved >= SHARE * TASKS


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


def test_a_server_that_knows_nothing_of_agents_takes_the_model(one: Trained, tmp_path: Path) -> None:
    """vLLM's server, as docs/serving.md says: what it writes first is a plan, as in training. (Its command asks for the
    version of a package `vllm`, which the CPU build is not.)"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(one.folder / "model"),
        "--served-model-name",
        "demo",
    ]
    here = ["--host", "127.0.0.1", "--port", port]
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"}
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen([sys.executable, *command, *here], stdout=log, stderr=log, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        question = {"role": "user", "content": "Who is the mayor of the town where Nora Lind was born ?"}
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
        assert re.fullmatch("<plan>[^<]*</plan><wiki_search>[^<]*", turn), turn  # the tag that ends it is left out
    finally:
        server.terminate()
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
