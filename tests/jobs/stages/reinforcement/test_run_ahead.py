"""How far engines run ahead of learners, in the loop itself."""

from pathlib import Path

from tests.support.engines import FakeWorld
from tests.support.rl_loop import make_run, reinforce
from tests.support.virtual_time import in_virtual_time


def test_engines_run_further_ahead_once_learners_wait_for_samples(tmp_path: Path) -> None:
    played = in_virtual_time(reinforce(make_run(tmp_path, max_staleness=4, steps=16), FakeWorld()))
    ages = [
        max(version - int(sample.versions[sample.versions >= 0].min()) for [share] in plan.shares for sample in share)
        for version, plan in sorted(played.learners.trained.items())
    ]
    assert (ages[:3], max(ages)) == ([0, 1, 1], 4)
