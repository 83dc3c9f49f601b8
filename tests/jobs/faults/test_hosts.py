"""Reinforcement on two hosts, with the cable between them cut: learner and driver on one, the engine on the other."""

import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.hosts import ENGINE_CPUS, NEEDS_ROOT, Hosts, two_hosts
from tests.support.rl_runs import Driver, RlRun, rl_run

pytestmark = [pytest.mark.slow, NEEDS_ROOT]

STEPS, CUT_S = 12, 30.0
DROPS_S, PASSES_S = 0.3, 1.5
"""For so long a link drops all packets, and none after that."""
SETTINGS = (
    "rl.window.max_staleness=1",
    # Only the second host has room for the engine, and the engine leaves none there.
    f"placement.engine_cpus={ENGINE_CPUS}",
)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with two_hosts() as found:
        yield found


@pytest.fixture
def run(hosts: Hosts, tmp_path: Path) -> Iterator[RlRun]:
    variables = {"RAY_ADDRESS": hosts.cluster.gcs, "RAY_AUTH_MODE": "disabled"}
    with rl_run(tmp_path / "run", STEPS, *SETTINGS, before=hosts.first.inside, **variables) as run:
        yield run.prepare()


def in_the_middle(run: RlRun) -> Driver:
    driver = run.start()
    run.until(driver, lambda: len(run.batches()) >= STEPS // 3)
    return driver


def goes_on_or_resumes(run: RlRun, driver: Driver) -> None:
    done = run.ended(driver)
    print(done.status, done.out, done.error, flush=True)
    if done.status:
        assert done.status == 1
        assert done.line.startswith("coa: rl failed: ")
        run.finish()
    run.accounts()


def test_a_run_goes_on_after_the_cable_was_cut_for_a_while(hosts: Hosts, run: RlRun) -> None:
    driver = in_the_middle(run)
    hosts.cut()
    with suppress(subprocess.TimeoutExpired):
        driver.wait(CUT_S)
    hosts.mend()
    goes_on_or_resumes(run, driver)


def test_a_run_goes_on_over_a_link_that_drops_packets(hosts: Hosts, run: RlRun) -> None:
    """In bursts, as a bad cable or a switch that is full does."""
    driver = in_the_middle(run)
    began = time.monotonic()
    while time.monotonic() - began < CUT_S and driver.poll() is None:
        hosts.cut()
        time.sleep(DROPS_S)
        hosts.mend()
        with suppress(subprocess.TimeoutExpired):
            driver.wait(PASSES_S)
    done = run.ended(driver)
    print(done.status, done.out, done.error, flush=True)
    assert done.status == 0, "it goes on without being typed again"
    run.accounts()


def test_a_run_goes_on_with_another_node_where_the_cable_was_cut_for_good(hosts: Hosts, run: RlRun) -> None:
    driver = in_the_middle(run)
    hosts.cut()
    run.until(driver, lambda: "rollout engine 0 died" in run.out)
    hosts.join_first()
    goes_on_or_resumes(run, driver)
