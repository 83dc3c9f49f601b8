"""An engine's time by what it did, and its speed by how many requests it had."""

import pytest

from actors.rollout import clocks
from actors.rollout.clocks import BusyClock, BusyReport, merged


def test_every_second_of_an_engine_has_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tokens = [50.0], [0]
    monkeypatch.setattr(clocks.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(clocks, "steady", lambda: now[0])
    clock = BusyClock(lambda: tokens[0])

    def passes(seconds: float, sampled: int = 0) -> None:
        now[0] += seconds
        tokens[0] += sampled

    passes(1.0)
    clock.hold(1)
    passes(2.0)  # the episode's tool
    clock.enter()
    passes(3.0, sampled=30)
    clock.enter()
    passes(1.0, sampled=16)
    clock.pause(True)
    passes(4.0)
    clock.pause(False)
    passes(1.0, sampled=14)
    clock.leave()
    clock.leave()
    clock.hold(0)
    passes(5.0)
    report = clock.report()
    assert report.spent == {"waiting_for_weights": 6.0, "waiting_for_tools": 2.0, "generating": 5.0, "syncing": 4.0}
    assert sum(report.spent.values()) == now[0] - 50.0
    assert report.decoding == ((1, 3.0, 30), (2, 2.0, 30))
    assert report.spans == ((53.0, 57.0), (61.0, 62.0))


def test_engines_one_after_the_other_are_one_account() -> None:
    one = BusyReport(((0.0, 1.0),), {"generating": 1.0}, ((2, 1.0, 10),))
    other = BusyReport(((3.0, 5.0),), {"generating": 2.0, "syncing": 1.0}, ((1, 0.5, 2), (2, 1.5, 20)))
    assert merged([one, other]) == BusyReport(
        ((0.0, 1.0), (3.0, 5.0)), {"generating": 3.0, "syncing": 1.0}, ((1, 0.5, 2), (2, 2.5, 30))
    )
    assert merged([]) == BusyReport(())
