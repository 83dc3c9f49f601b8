import pytest

from coa.reporting.pace import MARKS, Pace


def test_the_time_left_follows_from_the_steps_after_the_first_of_this_process() -> None:
    pace = Pace()
    pace.mark(20, now=100.0)  # a resumed run
    assert pace.seconds_left(36, now=105.0) is None
    pace.mark(21, now=400.0)  # the first step, and all that had to be started for it
    assert pace.seconds_left(36, now=400.0) is None
    pace.mark(22, now=405.0)  # it was prepared meanwhile
    assert pace.seconds_left(36, now=405.0) is None
    pace.mark(23, now=420.0)
    assert pace.seconds_left(36, now=420.0) == 130.0
    assert pace.seconds_left(36, now=424.0) == 126.0
    assert pace.seconds_left(23, now=500.0) == 0.0


def test_a_step_that_takes_longer_than_others_does_not_bring_the_end_nearer() -> None:
    pace = Pace()
    for step in range(4):
        pace.mark(step, now=10.0 * step)
    assert pace.seconds_left(10, now=40.0) == pace.seconds_left(10, now=400.0) == 60.0


def test_only_the_last_steps_count() -> None:
    pace = Pace()
    for step in range(100):
        pace.mark(step, now=step * 50.0)
    for step in range(MARKS):
        pace.mark(100 + step, now=5000.0 + step)
    assert pace.seconds_left(232, now=5000.0 + MARKS - 1) == 101.0


def test_many_that_end_within_a_moment_are_one_mark() -> None:
    pace = Pace()
    for done in range(4000):  # a hundred within a second, once in ten seconds
        pace.mark(done, now=done // 100 * 10 + done % 100 / 100)
    assert pace.seconds_left(8000, now=390.99) == pytest.approx(400, rel=0.1)


def test_a_stage_that_goes_back_to_a_checkpoint_is_judged_anew() -> None:
    pace = Pace()
    for step in range(6):
        pace.mark(step, now=float(step))
    pace.mark(3, now=60.0)
    assert pace.seconds_left(10, now=60.0) is None
    pace.mark(4, now=90.0)
    pace.mark(5, now=92.0)
    assert pace.seconds_left(10, now=92.0) is None
    pace.mark(6, now=94.0)
    assert pace.seconds_left(10, now=94.0) == 8.0
