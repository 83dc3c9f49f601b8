"""A wall clock that goes forwards and backwards by an hour while a run is under way."""

import itertools
import time
from pathlib import Path

import pytest

from coa.reporting.metrics import read_metrics
from tests.support.engines import FakeWorld
from tests.support.rl_loop import accounts_of, make_run, reinforce
from tests.support.virtual_time import in_virtual_time

JUMPS_S = (0.0, 3600.0, -3600.0, 0.0, -3600.0, 3600.0)


def test_a_run_trains_the_same_and_measures_the_same_kind_of_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = in_virtual_time(reinforce(make_run(tmp_path / "quiet"), FakeWorld()))
    wall, jumps = time.time, itertools.cycle(JUMPS_S)
    monkeypatch.setattr(time, "time", lambda: wall() + next(jumps))
    run = make_run(tmp_path / "jumps")
    jumped = in_virtual_time(reinforce(run, FakeWorld(), dies_after=(3,)))
    assert jumped.batches == quiet.batches
    assert accounts_of(run).faults == []
    records = [record for record in read_metrics(run.folder / "metrics.jsonl") if "loss" in record]
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5, 6]
    times = [record["time"] for record in records]
    assert max(abs(one - other) for one, other in itertools.pairwise(times)) > 3000, "the clock did jump"
    assert all(record["trajectories_s"] > 0 for record in records)
    assert 0 <= jumped.result["seconds"] < 1800
    assert all(share >= 0 for share in jumped.result["busy"].values())
