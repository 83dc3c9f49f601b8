"""Distillation from language models behind an endpoint, with everything killed that can be."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.teachers.team import Played
from actors.tools.remote import ToolClient
from coa.config import load
from coa.teams.run import Assignment
from coa.teams.store import read_transcripts
from coa.teams.transcript import Graded
from jobs.recipe.schema import Recipe
from jobs.run.console import open_console
from jobs.run.run_dir import RunDir
from tests.support.endpoints import EndpointProcess, Seen, read_log
from tests.support.teams import WorldTools

RUNS = 200
EVERY = sorted((f"distill-{i}", i) for i in range(RUNS))
ENDPOINT = ("--latency", "0.2", "--concurrent", "32", "--reply", "tests.support.expert_replies:reply")
FILTERS = ("min_interactions=2", "keep_without_reflection=1.0", "reflection_required=[]")
SETTINGS = (
    "tasks.world=tiny",
    "team.model=m",
    f"distill.runs={RUNS}",
    *(f"distill.filters.{setting}" for setting in FILTERS),
    "models.m.endpoint.name=expert",
    "models.m.endpoint.pause_s=0.05",
    "models.m.endpoint.attempts=100",
    "models.m.endpoint.timeouts=100",
)
ON_ITS_WAY_S = 0.25
"""A reply that was ready less than this before its receiver was killed may not have been received, and one that was
ready after that never was; a request that arrived less than this after it had been sent before."""


def recipe(folder: Path, url: str, *more: str) -> Recipe:
    return load(Recipe, None, (*SETTINGS, f"run_dir={folder}", f"models.m.endpoint.url={url}", *more))


def asked_again(seen: Sequence[Seen], killed: Sequence[float] = ()) -> list[Seen]:
    """Requests that came after an equal one whose answer somebody had; `killed`: when receivers were."""
    answered: dict[str, list[Seen]] = {}
    for one in seen:
        if one.finished is not None and one.outcome == "200":
            lost = any(one.arrived - ON_ITS_WAY_S <= kill <= one.finished + ON_ITS_WAY_S for kill in killed)
            answered.setdefault(one.id, []).extend(() if lost else (one,))
    return [one for one in seen if any((other.finished or 0) < one.arrived for other in answered.get(one.id, ()))]


@asynccontextmanager
async def team_of(run: RunDir) -> AsyncIterator[Any]:
    """With a tool executor that needs no sandbox: what the world's tools say."""
    import ray

    from jobs.teachers.teaching import language_models, teaching

    tools: Any = ray.remote(WorldTools).options(num_cpus=0, max_concurrency=100).remote()
    async with language_models(run, {"m"}) as models, teaching(run, ToolClient(tools), models) as team:
        yield team
    ray.kill(tools)


async def play_all(run: RunDir, disturb: Any = None) -> list[Graded]:
    """Every run of the stage, while somebody disturbs."""
    async with team_of(run) as team:
        disturbing = asyncio.ensure_future(disturb(team)) if disturb else None
        assignments = (Assignment(run.training_task("distill", i), attempt=i) for i in range(RUNS))
        played: list[Played] = [one async for one in team.stream(assignments)]
        if disturbing is not None:
            await disturbing
    outcomes = [outcome for one in played for outcome in one.outcomes]
    assert all(isinstance(outcome, Graded) for outcome in outcomes)
    return [outcome for outcome in outcomes if isinstance(outcome, Graded)]


def names(runs: Sequence[Graded]) -> list[tuple[str, int]]:
    return sorted((run.transcript.task.id, run.transcript.attempt) for run in runs)


async def requests_in(log: Path, count: int) -> None:
    """Returns once the endpoint has had so many."""
    while len(read_log(log)) < count:  # noqa: ASYNC110 - it is another process that writes
        await asyncio.sleep(0.05)


def last_arrival(log: Path) -> float:
    """When the actors of a driver that was killed ended: a moment later, and until then they asked on and on."""
    lines = -1
    while (now := len(log.read_text())) != lines:
        lines = now
        time.sleep(1.5)
    return max(one.arrived for one in read_log(log))


def pid_of(actor: Any) -> int:
    import ray

    return ray.get(actor.__ray_call__.remote(lambda self: os.getpid()))


@pytest.mark.slow
def test_teacher_actors_that_are_killed_lose_nothing_and_ask_nothing_twice(ray_session: None, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with EndpointProcess(*ENDPOINT, "--log", str(log)) as endpoint, open_console(tmp_path / "driver.log") as console:
        run = RunDir(recipe(tmp_path / "run", endpoint.url), console)
        run.prepare()
        killed: list[tuple[str, float]] = []

        async def disturb(team: Any) -> None:
            for name, after in (("team", 200), ("planner", 450), ("team", 600), ("m", 750)):
                await requests_in(log, after)
                os.kill(await asyncio.to_thread(pid_of, team.actors[name]), signal.SIGKILL)
                killed.append((name, time.time()))

        runs = asyncio.run(play_all(run, disturb))
    assert [name for name, _ in killed] == ["team", "planner", "team", "m"]
    assert names(runs) == EVERY
    assert asked_again(read_log(log), [when for name, when in killed if name != "team"]) == []


@pytest.mark.slow
def test_an_endpoint_that_is_killed_is_asked_again_for_what_it_owed(ray_session: None, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    with EndpointProcess(*ENDPOINT, "--log", str(log)) as endpoint, open_console(tmp_path / "driver.log") as console:
        run = RunDir(recipe(tmp_path / "run", endpoint.url), console)
        run.prepare()

        async def disturb(team: Any) -> None:
            for after in (200, 450, 700):
                await requests_in(log, after)
                endpoint.kill()
                await asyncio.to_thread(endpoint.start)

        runs = asyncio.run(play_all(run, disturb))
    assert names(runs) == EVERY
    seen = read_log(log)
    assert len({one.process for one in seen}) == 4
    assert asked_again(seen) == []


@pytest.mark.slow
def test_a_driver_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    log, folder = tmp_path / "log.jsonl", tmp_path / "run"
    with EndpointProcess(*ENDPOINT, "--log", str(log)) as endpoint:
        settings = (*SETTINGS, f"run_dir={folder}", f"models.m.endpoint.url={endpoint.url}", "teaching.shard_s=2")
        command = [sys.executable, "-m", "jobs.cli", "distill", "--recipe", "tiny", *settings]
        killed: list[float] = []
        for after in (200, 450, 700):
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as driver:
                while len(read_log(log)) < after:
                    assert driver.poll() is None, driver.stderr and driver.stderr.read().decode()
                    time.sleep(0.05)
                driver.kill()
            killed.append(last_arrival(log))
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        again = subprocess.run(command, check=True, capture_output=True, timeout=300)
    assert again.returncode == 0
    runs = list(read_transcripts(folder / "teachers"))
    assert names(runs) == EVERY
    start, *_ = seen = read_log(log)  # each start asks whether the endpoint answers
    assert asked_again([one for one in seen if one.id != start.id], killed) == []
    result = json.loads((folder / "checkpoints" / "distill.json").read_text())
    assert result["transcripts"] == RUNS
    assert result["requests"] == sum(run.transcript.usage.requests for run in runs)
    assert not (folder / "teachers" / "replies").exists()
