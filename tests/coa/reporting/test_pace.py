from coa.reporting.pace import MARKS, Pace


def test_the_time_left_follows_from_what_was_done_since_the_start_of_this_process() -> None:
    pace = Pace()
    pace.mark(20, now=100.0)  # a resumed run
    assert pace.left(36, now=105.0) is None
    pace.mark(21, now=110.0)
    assert pace.left(36, now=110.0) == 150.0
    assert pace.left(36, now=114.0) == 146.0
    assert pace.left(21, now=500.0) == 0.0


def test_only_the_last_steps_count() -> None:
    pace = Pace()
    for step in range(100):
        pace.mark(step, now=step * 50.0)
    for step in range(MARKS):
        pace.mark(100 + step, now=5000.0 + step)
    assert pace.left(232, now=5000.0 + MARKS - 1) == 101.0


def test_a_stage_that_goes_back_to_a_checkpoint_is_judged_anew() -> None:
    pace = Pace()
    pace.mark(0, now=0.0)
    pace.mark(5, now=5.0)
    pace.mark(3, now=60.0)
    assert pace.left(10, now=60.0) is None
    pace.mark(4, now=62.0)
    assert pace.left(10, now=62.0) == 12.0
