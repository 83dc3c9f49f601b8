"""The time of each engine and of the learners adds up to that of the stage, and each second has a name."""

import pytest

from actors.rollout.clocks import BusyReport
from jobs.stages.reinforcement import times
from jobs.stages.reinforcement.times import LoopTimes


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(times.time, "monotonic", lambda: now[0])
    return now


def engine(place_s: float, decoding: tuple[tuple[int, float, int], ...] = (), **spent: float) -> BusyReport:
    return BusyReport((), spent, decoding, place_s)


def test_a_step_and_the_whole_stage(clock: list[float]) -> None:
    counted = LoopTimes()
    counted.begin([engine(7.0, waiting_for_weights=7.0)], {"publishing": 3.0})
    clock[0] = 110.0
    first = [engine(17.0, waiting_for_weights=9.0, generating=6.0, syncing=2.0)]
    found = counted.step(first, {"publishing": 4.0, "learning": 9.0})
    assert found == {
        "engine/generating": 0.6,
        "engine/waiting_for_weights": 0.2,
        "engine/syncing": 0.2,
        "learner/publishing": 0.1,
        "learner/learning": 0.9,
    }
    clock[0] = 120.0
    second = [engine(27.0, waiting_for_weights=9.0, generating=16.0, syncing=2.0)]
    assert counted.step(second, {"publishing": 4.0, "learning": 19.0}) == {
        "engine/generating": 1.0,
        "learner/learning": 1.0,
    }
    assert counted.slowest() == "learners"  # of both steps together: 0.95 against 0.8 of the engines
    counted.finish({"publishing": 4.0, "learning": 19.0, "saving": 1.0})
    clock[0] = 121.0
    whole = counted.whole([engine(28.0, waiting_for_weights=10.0, generating=16.0, syncing=2.0)])["time"]
    assert whole["wall"] == 21.0
    assert whole["engines"] == [{"waiting_for_weights": 3.0, "generating": 16.0, "syncing": 2.0, "not_serving": 0.0}]
    assert whole["learner"] == {"publishing": 1.0, "learning": 19.0, "saving": 1.0, "not_serving": 0.0}
    assert all(sum(spent.values()) == 21.0 for spent in (*whole["engines"], whole["learner"]))


def test_the_slowest_part_is_that_of_all_recent_steps(clock: list[float]) -> None:
    counted = LoopTimes()
    counted.begin([engine(0.0)], {})
    clock[0] = 110.0
    counted.step([engine(10.0, generating=2.0, waiting_for_tools=8.0)], {"learning": 2.0, "waiting_for_samples": 8.0})
    assert counted.slowest() == "tools"
    clock[0] = 310.0
    counted.step(
        [engine(210.0, generating=202.0, waiting_for_tools=8.0)], {"learning": 2.0, "waiting_for_samples": 208.0}
    )
    assert counted.slowest() == "engines"
    clock[0] = 311.0
    counted.step(
        [engine(211.0, generating=202.0, waiting_for_tools=9.0)], {"learning": 2.0, "waiting_for_samples": 209.0}
    )
    assert counted.slowest() == "engines", "one short step changes little"


def test_what_an_engine_or_learners_that_came_later_lack_is_named(clock: list[float]) -> None:
    counted = LoopTimes()
    counted.begin([engine(5.0, generating=5.0)], {"publishing": 1.0})
    clock[0] = 104.0
    counted.step([engine(9.0, generating=9.0), engine(4.0, generating=1.0)], {"publishing": 1.0, "learning": 4.0})
    # The learners start again, and count from nothing; two seconds are gone.
    counted.begin([], {"publishing": 0.5})
    clock[0] = 110.0
    assert counted.step(
        [engine(15.0, generating=15.0), engine(10.0, generating=7.0)], {"publishing": 0.5, "learning": 4.0}
    )["learner/not_serving"] == pytest.approx(2 / 6)
    whole = counted.whole([engine(15.0, generating=15.0), engine(10.0, generating=7.0)])["time"]
    assert whole["engines"] == [{"generating": 10.0, "not_serving": 0.0}, {"generating": 7.0, "not_serving": 3.0}]
    assert whole["learner"] == {"publishing": 0.0, "learning": 8.0, "not_serving": 2.0}


def test_of_halves_that_take_turns_the_longer_turn_is_named(clock: list[float]) -> None:
    for takes_turns, slowest in ((True, "engines"), (False, "staleness window")):
        clock[0], counted = 100.0, LoopTimes(takes_turns=takes_turns)
        counted.begin([engine(0.0)], {})
        clock[0] = 110.0
        counted.step(
            [engine(10.0, generating=7.0, waiting_for_weights=3.0)], {"learning": 2.5, "waiting_for_samples": 7.5}
        )
        assert counted.slowest() == slowest


def test_an_engine_whose_place_was_given_up_lacks_nothing_afterwards(clock: list[float]) -> None:
    counted = LoopTimes()
    counted.begin([engine(5.0, generating=5.0)], {})
    clock[0] = 110.0
    then = [engine(15.0, generating=14.0), engine(8.0, generating=8.0)]
    assert counted.step(then, {})["engine/not_serving"] == pytest.approx(1 / 18)
    clock[0] = 120.0
    retired = [engine(25.0, generating=24.0), engine(8.0, generating=8.0)]
    assert counted.step(retired, {}) == {"engine/generating": 1.0}
    assert counted.whole(retired)["time"]["engines"] == [
        {"generating": 19.0, "not_serving": 1.0},
        {"generating": 8.0, "not_serving": 0.0},
    ]


def test_what_is_heard_late_now_and_then_is_no_time_without_anybody(clock: list[float]) -> None:
    counted = LoopTimes()
    counted.begin([engine(0.0)], {})
    for step, by in enumerate((0.5, 0.0, 0.5, 0.25, 0.5), 1):
        clock[0] = 100.0 + 2 * step + by
        found = counted.step([engine(2.0 * step + by, generating=2.0 * step)], {"learning": 2.0 * step})
        assert found == (
            {"engine/generating": 0.8, "engine/not_serving": 0.2} if step == 1 else {"engine/generating": 1.0}
        ) | {"learner/learning": 1.0}
    # Nobody was asked: nothing is known of this step.
    assert counted.step([engine(10.5, generating=10.0)], {"learning": 12.0}) == {"learner/learning": 1.0}


def test_how_engines_sampled_is_counted_from_the_stage_s_beginning(clock: list[float]) -> None:
    counted = LoopTimes()
    counted.begin([engine(0.0, ((4, 1.0, 100),))], {})
    found = counted.whole([engine(0.0, ((2, 1.0, 10), (4, 3.0, 500))), engine(0.0, ((4, 1.0, 50),))])
    assert found["decoding"] == [(2, 1.0, 10), (4, 3.0, 450)]


def test_a_stage_that_has_not_begun_has_spent_nothing(clock: list[float]) -> None:
    assert LoopTimes().whole([])["time"] == {"wall": 0.0, "engines": [], "learner": {"not_serving": 0.0}}
