"""Reinforcement while somebody else fills Ray's object store and the disk that it spills to."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import ray

from tests.support.clusters import ROOT, Cluster, head
from tests.support.disks import NEEDS_ROOT, disk
from tests.support.rl_runs import kill, rl_run

pytestmark = [pytest.mark.slow, NEEDS_ROOT]

STEPS, HELD_S, SPILL_MIB = 40, 60.0, 48
SETTINGS = (
    "rl.window.max_staleness=1",
    # A batch is an object of its own, where a small one would travel with its message.
    "rl.group=8",
    "rl.window.groups_per_batch=8",
    "placement.learner_restarts=0",
)


@contextmanager
def cluster_that_spills(folder: Path) -> Iterator[Cluster]:
    here = ray.util.get_node_ip_address()
    with disk(folder, SPILL_MIB), head("disabled", f"--object-spilling-directory={folder}", address=here) as cluster:
        yield cluster


@contextmanager
def full_store(cluster: Cluster) -> Iterator[None]:
    hog = subprocess.Popen(
        [sys.executable, "-m", "tests.support.hog", cluster.gcs],
        cwd=ROOT,
        env=cluster.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert hog.stdin
    assert hog.stdout
    try:
        # Ray tells of what it could not spill, too.
        assert any(line.startswith(b"full") for line in hog.stdout)
        yield
    finally:
        hog.stdin.close()
        kill(hog)


def test_it_goes_on_or_ends_with_one_line_and_resumes(tmp_path: Path) -> None:
    with cluster_that_spills(tmp_path / "spill") as cluster:
        joins = partial(rl_run, RAY_ADDRESS=cluster.gcs, RAY_AUTH_MODE="disabled")
        with joins(tmp_path / "run", STEPS, *SETTINGS) as run:
            driver = run.prepare().start()
            run.until(driver, lambda: len(run.batches()) >= 2)
            with full_store(cluster), suppress(subprocess.TimeoutExpired):
                assert len(run.batches()) < STEPS, "it fills up in the middle"
                driver.wait(HELD_S)
            print(len(run.batches()), "batches", flush=True)
            done = run.ended(driver)
            print(done.status, done.error, flush=True)
            if done.status:
                assert done.status == 1
                assert "Ray's object store is full, and so is the disk that it spills to" in done.line
                run.finish()
            run.accounts()
