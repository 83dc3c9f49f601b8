"""Rollout engines on nodes that Ray's autoscaler adds and removes."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray

from tests.support.clusters import ROOT, head

GROWN = {"nodes": {"engine": {"CPU": 1, "object_store_memory": 80 * 2**20}}, "most": 4, "idle_s": 6.0}
Drive = Callable[[str], Any]


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drive]:
    """What a driver of `tests.support.elastic` saw on one cluster, by its name."""
    folder = tmp_path_factory.mktemp("elastic")
    with head("disabled", cpus=0, grown=GROWN) as cluster:
        address = cluster.gcs.replace("127.0.0.1", ray.util.get_node_ip_address())

        def run(name: str) -> Any:
            words = [sys.executable, "-m", "tests.support.elastic", address, str(folder / name), name]
            log = folder / f"{name}.txt"
            with log.open("w") as said:
                done = subprocess.run(
                    words,
                    cwd=ROOT,
                    env=cluster.environment,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    check=False,
                    timeout=540,
                )
            assert done.returncode == 0, log.read_text()
            found = json.loads(done.stdout.splitlines()[-1])
            print(name, found)
            return found

        yield run


@pytest.mark.slow
def test_engines_and_their_nodes_come_and_go_with_the_work_and_leave_a_node_that_is_drained(drive: Drive) -> None:
    found = drive("come_and_go")
    assert found["start"] == 1
    assert (max(found["engines"]), found["engines"][-1]) == (3, 1)
    assert max(found["nodes"]) >= 3
    assert found["first"] == 0
    assert all(found["on"]), "no engine is on the node that was drained"
    assert found["moves"] > 0
    assert (found["restarts"], found["twice"], found["faults"]) == (0, 0, [])
    check_calls(found)


@pytest.mark.slow
def test_learners_wait_less_than_half_as_long_with_engines_that_come_also_where_one_is_lost_now_and_then(
    drive: Drive,
) -> None:
    alone, struck = drive("alone"), drive("struck")
    assert struck["waited_s"] <= alone["waited_s"] / 2
    assert struck["restarts"] > 0
    assert (alone["twice"], alone["faults"], struck["twice"], struck["faults"]) == (0, [], 0, [])
    assert struck["start"] == 1
    assert struck["moves"] > 0
    check_calls(struck)


def check_calls(found: Any) -> None:
    """No tool call ran twice, though engines left and were lost while calls of theirs were under way."""
    assert found["calls"]["ids"] > 0
    assert found["calls"]["runs"] == found["calls"]["ids"]
