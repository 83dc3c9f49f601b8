"""Rollout engines on nodes that Ray's autoscaler adds and removes."""

import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
import ray

from tests.support.clusters import ROOT, head

GROWN = {"nodes": {"engine": {"CPU": 1, "object_store_memory": 80 * 2**20}}, "most": 4, "idle_s": 6.0}


@pytest.mark.slow
def test_engines_and_their_nodes_come_and_go_with_the_work_and_leave_a_node_that_is_taken_away(tmp_path: Path) -> None:
    with head("disabled", cpus=0, grown=GROWN) as cluster:
        address = cluster.gcs.replace("127.0.0.1", ray.util.get_node_ip_address())
        words = [sys.executable, "-m", "tests.support.elastic", address, str(tmp_path / "run")]
        with (tmp_path / "said.txt").open("w") as said:
            done = subprocess.run(
                words, cwd=ROOT, env=cluster.environment, stdout=subprocess.PIPE, stderr=said, check=False, timeout=420
            )
    assert done.returncode == 0, (tmp_path / "said.txt").read_text()
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert [engines for engines, _ in groupby(found["engines"])] in ([1, 2, 3, 2, 1], [2, 3, 2, 1], [1, 3, 2, 1])
    assert max(found["nodes"]) >= 3
    assert (found["size"], found["nodes"][-1]) == (1, 1)
    assert found["first"] == 0
    assert all(found["on"]), "no engine is on the node that was drained"
    assert found["moves"] > 0
    assert (found["restarts"], found["twice"], found["faults"]) == (0, 0, [])
