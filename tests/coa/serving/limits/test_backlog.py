"""The expected wait for tools, and which requests it refuses."""

from collections import Counter

import pytest

from coa.serving.faults import ApiError
from coa.serving.limits.backlog import WINDOW_S, Backlog, Calls


def seen(backlog: Backlog, *looks: tuple[float, int, int]) -> Backlog:
    """looks: time, and how many calls of `code` had run and how many waited."""
    for at_s, ran, waiting in looks:
        backlog.see(at_s, {"code": Calls(ran=ran, waiting=waiting)})
    return backlog


def test_the_wait_is_how_many_wait_by_how_many_ran_a_second() -> None:
    backlog = seen(Backlog(max_wait_s=5.0), (100.0, 40, 8))
    assert backlog.wait_s == 0.0, "of one look nothing follows"
    backlog.see(102.0, {"code": Calls(ran=44, waiting=8), "web_search": Calls(ran=0, waiting=0)})
    assert backlog.wait_s == 4.0
    backlog.admit()
    seen(backlog, (104.0, 48, 12))
    assert backlog.wait_s == 6.0
    with pytest.raises(ApiError, match="overloaded") as refused:
        backlog.admit()
    assert (refused.value.status, refused.value.headers()) == (429, {"Retry-After": "1"})
    seen(backlog, (106.0, 60, 0)).admit()


def test_an_answer_waits_for_each_of_its_calls() -> None:
    backlog = Backlog(max_wait_s=5.0)
    for at_s, ran in ((0.0, 0), (10.0, 10)):
        backlog.see(at_s, {"code": Calls(ran=ran, waiting=2), "web_search": Calls(ran=ran, waiting=1)})
    assert backlog.wait_s == 2.0, "before the first answer, it makes one call"
    backlog.answered(Counter({"code": 4}))
    backlog.answered(Counter({"code": 2, "web_search": 1, "crawl": 7}))
    assert backlog.wait_s == 3 * 2.0 + 1.0 / 2
    for _ in range(100):
        backlog.answered(Counter())
    assert backlog.wait_s == 2.0, "that others make no call, or end before it, shortens the wait of none"


def test_requests_since_the_last_look_will_wait_too() -> None:
    backlog = seen(Backlog(max_wait_s=5.0), (0.0, 0, 3), (10.0, 10, 3))
    for _ in range(3):
        backlog.admit()
    with pytest.raises(ApiError):
        backlog.admit()
    seen(backlog, (11.0, 11, 3)).admit()
    assert backlog.wait_s == 4.0


def test_requests_at_once_are_admitted_where_no_call_waits() -> None:
    backlog = seen(Backlog(max_wait_s=1.0), (0.0, 0, 0), (10.0, 10, 0))
    for _ in range(300):
        backlog.admit()


def test_calls_that_do_not_run_at_all_wait_longer_and_longer() -> None:
    backlog = seen(Backlog(max_wait_s=30.0), *((float(at), 7, 3) for at in range(0, 10, 2)))
    assert backlog.wait_s == 24.0
    seen(backlog, (10.0, 7, 4))
    with pytest.raises(ApiError) as refused:
        backlog.admit()
    assert refused.value.retry_after_s == 10.0


def test_counts_that_begin_anew_are_no_sign_of_a_wait() -> None:
    backlog = seen(Backlog(max_wait_s=5.0), (0.0, 900, 3), (10.0, 910, 3), (12.0, 5, 3))
    assert backlog.wait_s == 0.0, "the dispatcher has started again: of one look nothing follows"
    seen(backlog, (14.0, 7, 3))
    assert backlog.wait_s == 3.0
    backlog.admit()
    backlog.see(16.0, {})
    assert backlog.wait_s == 0.0
    seen(backlog, (18.0, 9, 3))
    assert backlog.wait_s == 0.0, "what nobody could tell meanwhile does not count"


def test_only_the_last_seconds_count() -> None:
    backlog = seen(Backlog(max_wait_s=1.0), *((float(second), 100 * second, 0) for second in range(60)))
    seen(backlog, (60.0, 5900, 10))
    assert backlog.wait_s == 0.0, "a burst after a rest has not waited yet"
    seen(backlog, *((float(second), 5900, 10) for second in range(61, 75)))
    assert backlog.wait_s == 10 * WINDOW_S
